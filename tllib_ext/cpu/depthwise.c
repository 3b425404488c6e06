/* Batch norm, clip and depthwise 3 x 3 convolution (padding 1) of channels-last images in one: the normalised image is made
 * line by line in the cache and never written to memory, neither on the way forward nor on the way back.
 *
 * y: images x high x wide x channels; taps: 9 x channels; out, g: images x rows x columns x channels. Channels a multiple of
 * WIDTH. mean, scale and shift are those of the batch norm: z = clip((y - mean) * scale + shift). */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "kernels.h"

#define STRIP 64 /* places whose sums are kept in REAL; strips add up in double */

INLINE vec clip(vec value, vec bottom, vec top)
{
    value = pick(value < bottom, bottom, value);
    return pick(value > top, top, value);
}

void norm_clip_depthwise(const REAL *restrict y, long images, long high, long wide, long channels, long stride,
                         const REAL *restrict taps, const REAL *restrict mean, const REAL *restrict scale,
                         const REAL *restrict shift, REAL bottom, REAL top, REAL *restrict out, int threads)
{
    long rows = (high - 1) / stride + 1, columns = (wide - 1) / stride + 1, size = (wide + 2) * channels;
    #pragma omp parallel num_threads(threads)
    {
        REAL *lines = calloc(4 * size, sizeof *lines); /* three of z between empty places, and zeros for what lies outside */
        long held[3] = {-1, -1, -1};
        #pragma omp for schedule(static)
        for (long r = 0; r < images * rows; r++) {
            const REAL *three[3];
            for (int i = 0; i < 3; i++) {
                long row = r % rows * stride + i - 1, line = r / rows * high + row;
                three[i] = lines + (row < 0 || row >= high ? 3 : line % 3) * size;
                if (row < 0 || row >= high || held[line % 3] == line) continue;
                held[line % 3] = line;
                for (long k = 0; k < wide; k++)
                    for (long c = 0; c < channels; c += WIDTH) {
                        vec d = load(y + (line * wide + k) * channels + c) - load(mean + c);
                        store((REAL *)three[i] + (k + 1) * channels + c, clip(d * load(scale + c) + load(shift + c), all(bottom), all(top)));
                    }
            }
            for (long c = 0; c < channels; c += WIDTH) {
                vec tap[9];
                for (int k = 0; k < 9; k++) tap[k] = load(taps + k * channels + c);
                for (long column = 0; column < columns; column++) {
                    vec sum = {0};
                    for (int i = 0; i < 3; i++)
                        for (int j = 0; j < 3; j++) sum += load(three[i] + (column * stride + j) * channels + c) * tap[3 * i + j];
                    store(out + (r * columns + column) * channels + c, sum);
                }
            }
        }
        free(lines);
    }
}

/* A line of y at the channels from c on, and what reaches it on the way back. */
typedef struct {
    const REAL *y, *g[3]; /* the lines of g that the taps' first, second and third row lead to */
    REAL *of_y;
    long wide, step; /* step: from place to place */
    vec tap[9], mean, scale, shift, by_row, by_y, bottom, top;
} Line;

/* Place k: its share of the sums, or its gradient that follows from them. `through`, `over`: which rows and columns of taps
 * reach it, bit by bit. */
INLINE void place(const Line *l, long k, long stride, int through, int over, vec *sums)
{
    vec d = load(l->y + k * l->step) - l->mean, value = d * l->scale + l->shift, z = clip(value, l->bottom, l->top), grad = {0};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            if (through >> i & 1 && over >> j & 1) {
                vec g = load(l->g[i] + (k + 1 - j) / stride * l->step);
                grad += g * l->tap[3 * i + j];
                if (sums) sums[3 * i + j] += g * z;
            }
    grad = pick((value > l->bottom) & (value < l->top), grad, (vec){0});
    if (sums) {
        sums[9] += grad;
        sums[10] += grad * d;
    } else
        store(l->of_y + k * l->step, l->scale * (grad - l->by_row - d * l->by_y));
}

INLINE void places(const Line *l, long stride, int through, vec *sums)
{
    if (stride == 1) {
        place(l, 0, 1, through, l->wide > 1 ? 3 : 2, sums);
        for (long k = 1; k < l->wide - 1; k++) place(l, k, 1, through, 7, sums);
        if (l->wide > 1) place(l, l->wide - 1, 1, through, 6, sums);
    } else
        for (long k = 0; k < l->wide; k += 2) {
            place(l, k, 2, through, 2, sums);
            if (k + 2 < l->wide) place(l, k + 1, 2, through, 5, sums);
            else if (k + 1 < l->wide) place(l, k + 1, 2, through, 4, sums);
        }
}

INLINE void line_back(Line l, long row, long stride, vec *sums) /* copies: what is nobody else's can stay in registers */
{
    if (stride == 1) places(&l, 1, 7, sums);
    else if (row % 2) places(&l, 2, 5, sums);
    else places(&l, 2, 2, sums);
}

static void sums_of_line(const Line *l, long row, long stride, vec *sums)
{
    vec mine[11];
    memcpy(mine, sums, sizeof mine);
    line_back(*l, row, stride, mine);
    memcpy(sums, mine, sizeof mine);
}

static void gradients_of_line(const Line *l, long row, long stride) { line_back(*l, row, stride, 0); }

typedef struct {
    const REAL *y, *g, *taps, *mean, *scale, *shift, *by_row, *by_y, *zeros;
    REAL *of_y, bottom, top;
    long high, wide, channels, stride, rows, columns;
} Images;

/* Some lines of image n, from the first up to the last: their sums (nine taps, gradients, gradients times y - mean), or, if
 * there is no place for sums, the gradients of y. */
static void lines_back(const Images *m, long n, long first, long last, double *sums)
{
    for (long c = 0; c < m->channels; c += WIDTH) {
        vec mine[11] = {{0}};
        Line l = {.wide = m->wide, .step = m->channels, .mean = load(m->mean + c), .scale = load(m->scale + c),
                  .shift = load(m->shift + c), .by_row = load(m->by_row + c), .by_y = load(m->by_y + c),
                  .bottom = all(m->bottom), .top = all(m->top)};
        for (int k = 0; k < 9; k++) l.tap[k] = load(m->taps + k * m->channels + c);
        for (long row = first; row < last; row++) {
            long start = (n * m->high + row) * m->wide * m->channels + c;
            l.y = m->y + start;
            l.of_y = m->of_y + start;
            for (int i = 0; i < 3; i++) {
                long r = row + 1 - i, inside = r >= 0 && r / m->stride < m->rows;
                l.g[i] = (inside ? m->g + (n * m->rows + r / m->stride) * m->columns * m->channels : m->zeros) + c;
            }
            if (sums) sums_of_line(&l, row, m->stride, mine);
            else gradients_of_line(&l, row, m->stride);
        }
        for (int k = 0; sums && k < 11; k++)
            for (int lane = 0; lane < WIDTH; lane++) sums[k * m->channels + c + lane] += mine[k][lane];
    }
}

/* From the gradient g of out those of y, gamma, beta and the taps. */
void norm_clip_depthwise_back(const REAL *restrict g, const REAL *restrict y, long images, long high, long wide, long channels,
                              long stride, const REAL *restrict taps, const REAL *restrict mean, const REAL *restrict var,
                              const REAL *restrict scale, const REAL *restrict shift, REAL eps, REAL bottom, REAL top,
                              REAL *restrict of_y, REAL *restrict of_gamma, REAL *restrict of_beta, REAL *restrict of_taps,
                              int threads)
{
    long rows = (high - 1) / stride + 1, columns = (wide - 1) / stride + 1, places = images * high * wide;
    long tall = wide < STRIP ? STRIP / wide : 1, strips = (high + tall - 1) / tall; /* of an image */
    double *total = calloc(threads * 11 * channels, sizeof *total);
    REAL *zeros = calloc(columns * channels, sizeof *zeros), *by_row = calloc(2 * channels, sizeof *by_row), *by_y = by_row + channels;
    Images all_of_them = {y, g, taps, mean, scale, shift, by_row, by_y, zeros, of_y, bottom, top,
                          high, wide, channels, stride, rows, columns};
    #define STRIPS(sums) \
        _Pragma("omp parallel for schedule(static) num_threads(threads)") \
        for (long s = 0; s < images * strips; s++) { \
            long first = s % strips * tall; \
            lines_back(&all_of_them, s / strips, first, first + tall < high ? first + tall : high, sums); \
        }
    STRIPS(total + omp_get_thread_num() * 11 * channels)
    add_up(total, 11 * channels, threads);
    for (long c = 0; c < channels; c++) {
        double inverse = 1 / sqrt(var[c] + eps), sum = total[9 * channels + c], product = total[10 * channels + c];
        of_beta[c] = sum;
        of_gamma[c] = product * inverse;
        by_row[c] = sum / places;
        by_y[c] = product / places * inverse * inverse;
        for (int k = 0; k < 9; k++) of_taps[k * channels + c] = total[k * channels + c];
    }
    STRIPS(NULL)
    free(total);
    free(zeros);
    free(by_row);
}
