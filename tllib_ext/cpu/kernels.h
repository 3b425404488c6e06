/* Eight single or four double numbers at once, on any processor: compilers have them as "vector extensions". */
#include <string.h>

typedef REAL vec __attribute__((vector_size(32)));
typedef __typeof__((vec){0} < (vec){0}) mask;
#define WIDTH ((long)(sizeof(vec) / sizeof(REAL)))
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const REAL *from) { vec v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(REAL *to, vec v) { memcpy(to, &v, sizeof v); }
INLINE vec pick(mask where, vec a, vec b) { return (vec)((where & (mask)a) | (~where & (mask)b)); }
INLINE vec all(REAL number) { return (vec){0} + number; }

/* The largest vectors there are, for products: ROWS x PANEL numbers fill the registers. */
#ifdef __AVX512F__
#define ROWS 12
typedef REAL big __attribute__((vector_size(64)));
#else
#define ROWS 6
typedef vec big;
#endif
#define BIG ((long)(sizeof(big) / sizeof(REAL)))
#define PANEL (2 * BIG)

INLINE big load_big(const REAL *from) { big v; memcpy(&v, from, sizeof v); return v; }
INLINE void store_big(REAL *to, big v) { memcpy(to, &v, sizeof v); }
INLINE big all_big(REAL number) { return (big){0} + number; }

/* Numbers a[i * row + k * step], k < inner, times a panel b (inner x PANEL): `count` rows of out, `columns` from one to the next. */
INLINE void times_panel(const REAL *restrict a, long row, long step, const REAL *restrict b, long inner, int count,
                        REAL *restrict out, long columns)
{
    big sum[ROWS][2] = {{{0}}};
    for (long k = 0; k < inner; k++) {
        big first = load_big(b + k * PANEL), second = load_big(b + k * PANEL + BIG);
        for (int i = 0; i < count; i++) {
            big factor = all_big(a[i * row + k * step]);
            sum[i][0] += factor * first;
            sum[i][1] += factor * second;
        }
    }
    for (int i = 0; i < count; i++) {
        store_big(out + i * columns, sum[i][0]);
        store_big(out + i * columns + BIG, sum[i][1]);
    }
}

/* Every thread's sums into the first one's: always in the same order, so that a run can be repeated to the last bit. */
static inline void add_up(double *sums, long count, int threads)
{
    for (int thread = 1; thread < threads; thread++)
        for (long k = 0; k < count; k++) sums[k] += sums[thread * count + k];
}
