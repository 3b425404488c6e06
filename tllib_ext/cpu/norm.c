/* Batch norm, clipped to what lies between bottom and top (none: -inf, inf; ReLU: 0, inf; ReLU6: 0, 6), in as few passes
 * over memory as there can be.
 *
 * y, z, g: rows x channels, the layout of channels-last images. The last dimension of every loop runs over the channels, so
 * that it vectorises; sums over the rows go block by block, and the blocks add up in double. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define BLOCK 64 /* rows whose sums are kept in REAL */

/* total: for every channel the sums over the rows r of two numbers, which may use `r` and `c`. */
#define SUM_ROWS(total, first, second) \
    _Pragma("omp parallel num_threads(threads)") \
    { \
        double *mine = total + omp_get_thread_num() * 2 * channels; \
        REAL *sum = malloc(2 * channels * sizeof *sum), *other = sum + channels; \
        _Pragma("omp for schedule(static)") \
        for (long b = 0; b < (rows + BLOCK - 1) / BLOCK; b++) { \
            memset(sum, 0, 2 * channels * sizeof *sum); \
            for (long r = b * BLOCK; r < rows && r < (b + 1) * BLOCK; r++) \
                _Pragma("omp simd") \
                for (long c = 0; c < channels; c++) { \
                    sum[c] += first; \
                    other[c] += second; \
                } \
            for (long c = 0; c < 2 * channels; c++) mine[c] += sum[c]; \
        } \
        free(sum); \
    } \
    add_up(total, 2 * channels, threads);

/* Mean and variance of the batch, towards which the running ones move, and what normalises it:
 * (y - mean) * scale + shift. */
void norm_statistics(const REAL *restrict y, long rows, long channels, const REAL *restrict gamma, const REAL *restrict beta,
                     REAL eps, REAL momentum, REAL *restrict running_mean, REAL *restrict running_var, REAL *restrict mean,
                     REAL *restrict var, REAL *restrict scale, REAL *restrict shift, int threads)
{
    double *total = calloc(threads * 2 * channels, sizeof *total);
    #define FROM_FIRST (y[r * channels + c] - y[c]) /* squares of what is far from zero would cancel */
    SUM_ROWS(total, FROM_FIRST, FROM_FIRST * FROM_FIRST)
    for (long c = 0; c < channels; c++) {
        double m = total[c] / rows, v = total[channels + c] / rows - m * m;
        mean[c] = y[c] + m;
        var[c] = v < 0 ? 0 : v; /* rounding; what is not a number stays */
        scale[c] = gamma[c] / sqrt(var[c] + eps);
        shift[c] = beta[c];
        running_mean[c] += momentum * (mean[c] - running_mean[c]);
        running_var[c] += momentum * (var[c] * rows / (rows - 1) - running_var[c]);
    }
    free(total);
}

void norm_clip(const REAL *restrict y, long rows, long channels, const REAL *restrict mean, const REAL *restrict scale,
               const REAL *restrict shift, REAL bottom, REAL top, REAL *restrict z, int threads)
{
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        const REAL *row = y + r * channels;
        REAL *out = z + r * channels;
        #pragma omp simd
        for (long c = 0; c < channels; c++) {
            REAL value = (row[c] - mean[c]) * scale[c] + shift[c];
            value = value < bottom ? bottom : value;
            out[c] = value > top ? top : value;
        }
    }
}

/* From the gradient g of z those of y (which may overwrite g), gamma and beta. */
void norm_clip_back(const REAL *g, const REAL *restrict y, long rows, long channels, const REAL *restrict mean,
                    const REAL *restrict var, const REAL *restrict scale, const REAL *restrict shift, REAL eps,
                    REAL bottom, REAL top, REAL *of_y, REAL *restrict of_gamma, REAL *restrict of_beta,
                    int threads)
{
    double *total = calloc(threads * 2 * channels, sizeof *total);
    REAL *by_row = malloc(2 * channels * sizeof *by_row), *by_y = by_row + channels;
    #define CENTRED (y[r * channels + c] - mean[c])
    #define VALUE (CENTRED * scale[c] + shift[c])
    #define PASSED (VALUE > bottom && VALUE < top ? g[r * channels + c] : 0)
    SUM_ROWS(total, PASSED, PASSED * CENTRED)
    for (long c = 0; c < channels; c++) {
        REAL inverse = 1 / sqrt(var[c] + eps);
        of_beta[c] = total[c];
        of_gamma[c] = total[channels + c] * inverse;
        by_row[c] = total[c] / rows;
        by_y[c] = total[channels + c] / rows * inverse * inverse;
    }
    free(total);
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (long r = 0; r < rows; r++)
        #pragma omp simd
        for (long c = 0; c < channels; c++)
            of_y[r * channels + c] = scale[c] * (PASSED - by_row[c] - CENTRED * by_y[c]);
    free(by_row);
}
