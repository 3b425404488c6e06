/* The gradient of a linear layer's weights on few rows: g' x, outs x inner, from rows x outs and rows x inner. */
#include <omp.h>
#include <stdlib.h>

#include "kernels.h"

/* Some outputs' gradients times PANEL inputs of all rows, which lie together in `part`. */
INLINE void outer(const REAL *restrict g, const REAL *restrict part, long rows, long inner, long outs, int count, REAL *restrict of_w)
{
    big sum[ROWS][2] = {{{0}}};
    for (long r = 0; r < rows; r++) {
        big first = load_big(part + r * PANEL), second = load_big(part + r * PANEL + BIG);
        for (int i = 0; i < count; i++) {
            big factor = all_big(g[r * outs + i]);
            sum[i][0] += factor * first;
            sum[i][1] += factor * second;
        }
    }
    for (int i = 0; i < count; i++) {
        store_big(of_w + i * inner, sum[i][0]);
        store_big(of_w + i * inner + BIG, sum[i][1]);
    }
}

/* Inner is a multiple of PANEL. */
void linear_back(const REAL *g, const REAL *x, long rows, long inner, long outs, REAL *of_w, int threads)
{
    #pragma omp parallel num_threads(threads)
    {
        REAL *part = malloc(rows * PANEL * sizeof *part);
        #pragma omp for schedule(static)
        for (long k = 0; k < inner; k += PANEL) {
            for (long r = 0; r < rows; r++) memcpy(part + r * PANEL, x + r * inner + k, PANEL * sizeof *part);
            long o = 0;
            for (; o + ROWS <= outs; o += ROWS) outer(g + o, part, rows, inner, outs, ROWS, of_w + o * inner + k);
            for (; o < outs; o++) outer(g + o, part, rows, inner, outs, 1, of_w + o * inner + k);
        }
        free(part);
    }
}
