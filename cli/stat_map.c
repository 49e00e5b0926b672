/*
 * stat_map.c: layers x experts at a glance.
 *
 *     layer  3  ..:-=+-.:@-=...      one line for each layer, or for some neighbours
 *            4  -..=%:.--...:-.      one column for each expert, or for some neighbours
 *
 * A cell is the largest count in it over the layer's mean count, so a hot expert is seen however
 * many share its cell. On a terminal with colours cells are coloured (NO_COLOR=1 asks for none);
 * elsewhere characters stand for the same steps.
 */
#include "cli/stat_output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define MAX_LINES 40
#define LABEL_WIDTH 10
#define DEFAULT_WIDTH 80
#define MAX_WIDTH 1000

/* Steps of count over mean, the upper ends; a cell at or above the last has the last sign. */
static const double LIMITS[] = {0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0};
#define N_STEPS ((int)(sizeof LIMITS / sizeof LIMITS[0]) + 1)
static const char SIGNS[] = " .,:-=+*#@";
/* From dark blue over grey to yellow and red, in the 256-colour palette. */
static const int COLOURS[] = {17, 18, 24, 30, 65, 107, 143, 179, 208, 196};

static int screen_width(void) {
    const char *columns = getenv("COLUMNS");
    struct winsize size;
    long width = columns != NULL ? strtol(columns, NULL, 10) : 0;
    if (width <= 0 && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        width = size.ws_col;
    if (width <= 0)
        width = DEFAULT_WIDTH;
    return width < LABEL_WIDTH + 8 ? LABEL_WIDTH + 8 : width > MAX_WIDTH ? MAX_WIDTH : (int)width;
}

static bool has_colours(void) {
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_colour == NULL || no_colour[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

static int step_of(double ratio) {
    int step = 0;
    while (step < N_STEPS - 1 && ratio >= LIMITS[step])
        step++;
    return step;
}

static void print_cell(int step, bool colours) {
    if (colours)
        printf("\033[48;5;%dm \033[0m", COLOURS[step]);
    else
        putchar(SIGNS[step]);
}

/* Largest count over mean in layers [l, l_end) and experts [e, e_end); NaN without load. */
static double ratio_of(const bl_stat *stat, int l, int l_end, int e, int e_end) {
    double most = NAN;
    for (; l < l_end; l++) {
        const double assignments = (double)stat->layers[l].experts.assignments;
        for (int expert = e; expert < e_end && assignments > 0.0; expert++) {
            const double ratio =
                (double)bl_stat_count(stat, l, expert) * stat->info.n_experts / assignments;
            most = !(ratio <= most) ? ratio : most;
        }
    }
    return most;
}

static void print_line(const bl_stat *stat, int l, int l_end, int per_cell, bool colours) {
    char label[32];
    if (l_end - l == 1)
        snprintf(label, sizeof label, "%d", stat->info.layers[l]);
    else
        snprintf(label, sizeof label, "%d-%d", stat->info.layers[l], stat->info.layers[l_end - 1]);
    printf("%*s ", LABEL_WIDTH - 1, label);
    for (int e = 0; e < stat->info.n_experts; e += per_cell) {
        const int e_end = e + per_cell < stat->info.n_experts ? e + per_cell : stat->info.n_experts;
        const double ratio = ratio_of(stat, l, l_end, e, e_end);
        if (isnan(ratio))
            putchar('?');
        else
            print_cell(step_of(ratio), colours);
    }
    putchar('\n');
}

static void print_legend(bool colours) {
    printf("%*s ", LABEL_WIDTH - 1, "");
    for (int step = 0; step < N_STEPS; step++) {
        print_cell(step, colours);
        if (step < N_STEPS - 1)
            printf(" <%g  ", LIMITS[step]);
    }
    printf(" more, times the mean\n");
}

void bl_stat_print_map(const bl_stat *stat) {
    const int n_layers = stat->info.n_layers, n_experts = stat->info.n_experts;
    const int room = screen_width() - LABEL_WIDTH;
    const int per_cell = (n_experts + room - 1) / room;
    const int per_line = (n_layers + MAX_LINES - 1) / MAX_LINES;
    const bool colours = has_colours();
    printf("\n%*s experts 0 to %d, %d to a cell\n", LABEL_WIDTH - 1, "layer", n_experts - 1,
           per_cell);
    for (int l = 0; l < n_layers; l += per_line)
        print_line(stat, l, l + per_line < n_layers ? l + per_line : n_layers, per_cell, colours);
    print_legend(colours);
}
