/* The tiles of winograd.py, which has the algebra: 4 x 4 numbers of the input for 2 x 2 of the output, one tile after the
 * other, so that what is read and written once stays in the cache between the two directions of a transform.
 *
 * Images are channels-last, channels a multiple of WIDTH. Tiles: 16 planes x tiles x channels. */
#include <omp.h>
#include <stdlib.h>

#include "kernels.h"

typedef struct {
    long images, high, wide, up, across; /* places; tiles */
} Grid;

static Grid grid(long images, long high, long wide) { return (Grid){images, high, wide, (high + 1) / 2, (wide + 1) / 2}; }
static long number(Grid s) { return s.images * s.up * s.across; }

/* Tile number t: its image n, first row and column of its output. */
#define TILE(s, t) long n = (t) / (s.up * s.across), top = (t) / s.across % s.up * 2, left = (t) % s.across * 2
#define PLACE(image, s, row, column) (image + ((n * s.high + row) * s.wide + column) * channels + c)
#define PLANE(tile, i, j) (tile + ((i) * 4 + (j)) * plane + c)

/* B' d B; plane: from plane to plane */
INLINE void input_tile(const REAL *restrict x, Grid s, long t, long channels, REAL *restrict tile, long plane)
{
    TILE(s, t);
    for (long c = 0; c < channels; c += WIDTH) {
        vec d[4][4], e[4][4];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                long row = top + i - 1, column = left + j - 1;
                int outside = row < 0 || row >= s.high || column < 0 || column >= s.wide;
                d[i][j] = outside ? (vec){0} : load(PLACE(x, s, row, column));
            }
        for (int j = 0; j < 4; j++) {
            e[0][j] = d[0][j] - d[2][j];
            e[1][j] = d[1][j] + d[2][j];
            e[2][j] = d[2][j] - d[1][j];
            e[3][j] = d[1][j] - d[3][j];
        }
        for (int i = 0; i < 4; i++) {
            store(PLANE(tile, i, 0), e[i][0] - e[i][2]);
            store(PLANE(tile, i, 1), e[i][1] + e[i][2]);
            store(PLANE(tile, i, 2), e[i][2] - e[i][1]);
            store(PLANE(tile, i, 3), e[i][1] - e[i][3]);
        }
    }
}

/* A' m A */
INLINE void output_tile(const REAL *restrict tile, long plane, Grid s, long t, long channels, REAL *restrict y)
{
    TILE(s, t);
    for (long c = 0; c < channels; c += WIDTH) {
        vec e[2][4];
        for (int j = 0; j < 4; j++) {
            vec second = load(PLANE(tile, 1, j)), third = load(PLANE(tile, 2, j));
            e[0][j] = load(PLANE(tile, 0, j)) + second + third;
            e[1][j] = second - third - load(PLANE(tile, 3, j));
        }
        for (int i = 0; i < 2 && top + i < s.high; i++) {
            store(PLACE(y, s, top + i, left), e[i][0] + e[i][1] + e[i][2]);
            if (left + 1 < s.wide) store(PLACE(y, s, top + i, left + 1), e[i][1] - e[i][2] - e[i][3]);
        }
    }
}

/* A g A' */
INLINE void gradient_tile(const REAL *restrict g, Grid s, long t, long channels, REAL *restrict tile, long plane)
{
    TILE(s, t);
    for (long c = 0; c < channels; c += WIDTH) {
        vec e[4][2];
        for (int j = 0; j < 2; j++) {
            vec zero = {0}, first = left + j < s.wide ? load(PLACE(g, s, top, left + j)) : zero;
            vec second = left + j < s.wide && top + 1 < s.high ? load(PLACE(g, s, top + 1, left + j)) : zero;
            e[0][j] = first;
            e[1][j] = first + second;
            e[2][j] = first - second;
            e[3][j] = -second;
        }
        for (int i = 0; i < 4; i++) {
            store(PLANE(tile, i, 0), e[i][0]);
            store(PLANE(tile, i, 1), e[i][0] + e[i][1]);
            store(PLANE(tile, i, 2), e[i][0] - e[i][1]);
            store(PLANE(tile, i, 3), -e[i][1]);
        }
    }
}

#define ALL_TILES(transform) \
    Grid s = grid(images, high, wide); \
    long plane = number(s) * channels; \
    _Pragma("omp parallel for schedule(static) num_threads(threads)") \
    for (long t = 0; t < number(s); t++) transform(x, s, t, channels, tiles + t * channels, plane);

void input_tiles(const REAL *x, long images, long high, long wide, long channels, REAL *tiles, int threads)
{
    ALL_TILES(input_tile)
}

void gradient_tiles(const REAL *x, long images, long high, long wide, long channels, REAL *tiles, int threads)
{
    ALL_TILES(gradient_tile)
}

/* G w G' of the filters (outs x channels x 3 x 3, with any steps between them), those of PANEL outputs together: 16 x outs /
 * PANEL x channels x PANEL. Turned round, they lead from a gradient back. */
void filter_tiles(const REAL *restrict w, long outs, long channels, long by_out, long by_channel, long by_row, long by_column,
                  int turned, REAL *restrict tiles, int threads)
{
    long plane = outs * channels;
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (long k = 0; k < plane; k += PANEL * WIDTH) { /* PANEL outputs, WIDTH channels: read in memory's order */
        REAL taps[3][3][WIDTH * PANEL];
        const REAL *from = w + k / (PANEL * channels) * PANEL * by_out + k / PANEL % channels * by_channel;
        for (long r = 0; r < PANEL * WIDTH; r++) {
            long o = by_out > by_channel ? r / WIDTH : r % PANEL, c = by_out > by_channel ? r % WIDTH : r / PANEL;
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < 3; j++)
                    taps[turned ? 2 - i : i][turned ? 2 - j : j][c * PANEL + o] =
                        from[o * by_out + i * by_row + j * by_column + c * by_channel];
        }
        #pragma omp simd
        for (long l = 0; l < WIDTH * PANEL; l++) {
            REAL e[4][3];
            for (int j = 0; j < 3; j++) {
                REAL first = taps[0][j][l], second = taps[1][j][l], third = taps[2][j][l];
                e[0][j] = first;
                e[1][j] = (first + third + second) / 2;
                e[2][j] = (first + third - second) / 2;
                e[3][j] = third;
            }
            for (int i = 0; i < 4; i++) {
                REAL *to = tiles + i * 4 * plane + k + l;
                to[0] = e[i][0];
                to[plane] = (e[i][0] + e[i][2] + e[i][1]) / 2;
                to[2 * plane] = (e[i][0] + e[i][2] - e[i][1]) / 2;
                to[3 * plane] = e[i][2];
            }
        }
    }
}

/* G' m G of the sums over all tiles, 16 x outs x channels: the gradient of the filters, outs x 3 x 3 x channels */
void filter_gradients(const REAL *restrict sums, long outs, long channels, REAL *restrict of_filters, int threads)
{
    long plane = outs * channels;
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (long o = 0; o < outs; o++)
        for (long c = 0; c < channels; c += WIDTH) {
            vec e[3][4];
            for (int j = 0; j < 4; j++) {
                const REAL *m = sums + j * plane + o * channels + c;
                vec first = load(m), second = load(m + 4 * plane), third = load(m + 8 * plane);
                e[0][j] = first + (second + third) / 2;
                e[1][j] = (second - third) / 2;
                e[2][j] = (second + third) / 2 + load(m + 12 * plane);
            }
            for (int i = 0; i < 3; i++) {
                REAL *to = of_filters + (o * 9 + i * 3) * channels + c;
                store(to, e[i][0] + (e[i][1] + e[i][2]) / 2);
                store(to + channels, (e[i][1] - e[i][2]) / 2);
                store(to + 2 * channels, (e[i][1] + e[i][2]) / 2 + e[i][3]);
            }
        }
}

#define CACHE (512 << 10) /* bytes of tiles, of both sides, that a core keeps near */

static long tiles_at_a_time(long channels)
{
    long fit = CACHE / (16 * channels * sizeof(REAL));
    return (fit > ROWS ? fit / ROWS : 1) * ROWS;
}

/* A convolution; filters: 16 x outs / PANEL x channels x PANEL. Some tiles at a time go all the way from x to y without leaving
 * the cache. */
void winograd(const REAL *x, long images, long high, long wide, long channels, const REAL *filters, long outs, REAL *y,
              int threads)
{
    Grid s = grid(images, high, wide);
    long some = tiles_at_a_time(channels + outs);
    #pragma omp parallel num_threads(threads)
    {
        REAL *in = calloc(16 * some * (channels + outs), sizeof *in), *out = in + 16 * some * channels;
        #pragma omp for schedule(static)
        for (long first = 0; first < number(s); first += some) {
            long here = number(s) - first < some ? number(s) - first : some;
            for (long t = 0; t < here; t++) input_tile(x, s, first + t, channels, in + t * channels, some * channels);
            for (long p = 0; p < 16; p++)
                for (long c = 0; c < outs; c += PANEL)
                    for (long t = 0; t < here; t += ROWS) /* more rows than are left: nobody reads what becomes of them */
                        times_panel(in + (p * some + t) * channels, channels, 1, filters + (p * outs + c) * channels, channels,
                                    ROWS, out + (p * some + t) * outs + c, outs);
            for (long t = 0; t < here; t++) output_tile(out + t * outs, some * outs, s, first + t, outs, y);
        }
        free(in);
    }
}
