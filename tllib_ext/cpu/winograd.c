/* The tiles of winograd.py, which has the algebra: 4 x 4 numbers of the input for 2 x 2 of the output, one tile after the
 * other, so that what is read and written once stays in the cache between the two directions of a transform.
 *
 * Images are channels-last, channels a multiple of WIDTH. Tiles: 16 x (images * up * across) x channels. */
#include "kernels.h"

/* The tiles of a loop's turn: image n, first row and column of its output. */
#define FOR_EACH_TILE \
    long up = (high + 1) / 2, across = (wide + 1) / 2, count = images * up * across, plane = count * channels; \
    _Pragma("omp parallel for schedule(static) num_threads(threads)") \
    for (long tile = 0; tile < count; tile++) \
        for (long c = 0, n = tile / (up * across), top = tile / across % up * 2, left = tile % across * 2; c < channels; c += WIDTH)
#define PLACE(image, row, column) (image + ((n * high + row) * wide + column) * channels + c)
#define IN_TILE(tiles, i, j) (tiles + ((i) * 4 + (j)) * plane + tile * channels + c)

/* B' d B */
void input_tiles(const REAL *restrict x, long images, long high, long wide, long channels, REAL *restrict tiles, int threads)
{
    FOR_EACH_TILE {
        vec d[4][4], e[4][4];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                long row = top + i - 1, column = left + j - 1;
                d[i][j] = row < 0 || row >= high || column < 0 || column >= wide ? (vec){0} : load(PLACE(x, row, column));
            }
        for (int j = 0; j < 4; j++) {
            e[0][j] = d[0][j] - d[2][j];
            e[1][j] = d[1][j] + d[2][j];
            e[2][j] = d[2][j] - d[1][j];
            e[3][j] = d[1][j] - d[3][j];
        }
        for (int i = 0; i < 4; i++) {
            store(IN_TILE(tiles, i, 0), e[i][0] - e[i][2]);
            store(IN_TILE(tiles, i, 1), e[i][1] + e[i][2]);
            store(IN_TILE(tiles, i, 2), e[i][2] - e[i][1]);
            store(IN_TILE(tiles, i, 3), e[i][1] - e[i][3]);
        }
    }
}

/* A' m A */
void output_tiles(const REAL *restrict tiles, long images, long high, long wide, long channels, REAL *restrict y, int threads)
{
    FOR_EACH_TILE {
        vec e[2][4];
        for (int j = 0; j < 4; j++) {
            vec second = load(IN_TILE(tiles, 1, j)), third = load(IN_TILE(tiles, 2, j));
            e[0][j] = load(IN_TILE(tiles, 0, j)) + second + third;
            e[1][j] = second - third - load(IN_TILE(tiles, 3, j));
        }
        for (int i = 0; i < 2 && top + i < high; i++) {
            store(PLACE(y, top + i, left), e[i][0] + e[i][1] + e[i][2]);
            if (left + 1 < wide) store(PLACE(y, top + i, left + 1), e[i][1] - e[i][2] - e[i][3]);
        }
    }
}

/* A g A' */
void gradient_tiles(const REAL *restrict g, long images, long high, long wide, long channels, REAL *restrict tiles, int threads)
{
    FOR_EACH_TILE {
        vec e[4][2];
        for (int j = 0; j < 2; j++) {
            vec zero = {0}, first = left + j < wide ? load(PLACE(g, top, left + j)) : zero;
            vec second = left + j < wide && top + 1 < high ? load(PLACE(g, top + 1, left + j)) : zero;
            e[0][j] = first;
            e[1][j] = first + second;
            e[2][j] = first - second;
            e[3][j] = -second;
        }
        for (int i = 0; i < 4; i++) {
            store(IN_TILE(tiles, i, 0), e[i][0]);
            store(IN_TILE(tiles, i, 1), e[i][0] + e[i][1]);
            store(IN_TILE(tiles, i, 2), e[i][0] - e[i][1]);
            store(IN_TILE(tiles, i, 3), -e[i][1]);
        }
    }
}
