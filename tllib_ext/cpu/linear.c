/* The gradient of a linear layer's weights on few rows: g' x, outs x inner, from rows x outs and rows x inner. Inner is a
 * multiple of PANEL. */
#include <omp.h>
#include <stdlib.h>

#include "kernels.h"

void linear_back(const REAL *g, const REAL *x, long rows, long inner, long outs, REAL *of_w, int threads)
{
    #pragma omp parallel num_threads(threads)
    {
        REAL *panel = malloc(rows * PANEL * sizeof *panel);
        #pragma omp for schedule(static)
        for (long k = 0; k < inner; k += PANEL) {
            for (long r = 0; r < rows; r++) memcpy(panel + r * PANEL, x + r * inner + k, PANEL * sizeof *panel);
            long o = 0;
            for (; o + ROWS <= outs; o += ROWS) times_panel(g + o, 1, outs, panel, rows, ROWS, of_w + o * inner + k, inner);
            for (; o < outs; o++) times_panel(g + o, 1, outs, panel, rows, 1, of_w + o * inner + k, inner);
        }
        free(panel);
    }
}
