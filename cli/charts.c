/* charts.c: inline SVG. Sizes are those of the viewBox; the page scales it. */
#include "cli/html.h"

#include <math.h>
#include <string.h>

#define WIDTH 900.0
#define HEIGHT 250.0
#define LEFT 64.0
#define RIGHT 12.0
#define TOP 30.0
#define BOTTOM 44.0
#define MOST_POINTS 600 /* drawn of a line */
#define MOST_BARS 150   /* groups */
#define MOST_ROWS 128   /* of a heat map */
#define MOST_COLUMNS 256

typedef struct frame {
    FILE *out;
    double low, high; /* of y */
    size_t n, per;    /* points, and how many are drawn as one */
    size_t shown;
} frame;

/* The largest of the values that are drawn as point i; NaN when there is none. */
static double merged(const frame *f, const double *values, size_t i) {
    double most = NAN;
    for (size_t at = i * f->per; at < (i + 1) * f->per && at < f->n; at++)
        most = isnan(most) || values[at] > most ? values[at] : most;
    return most;
}

static double x_of(const frame *f, double i) {
    const double room = WIDTH - LEFT - RIGHT;
    return LEFT + (f->shown > 1 ? i / (double)(f->shown - 1) * room : room / 2);
}

static double y_of(const frame *f, double value) {
    return TOP + (f->high - value) / (f->high - f->low) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about five of them fill the axis. */
static double tick_of(double range) {
    const double rough = range / 5.0, power = pow(10.0, floor(log10(rough)));
    const double part = rough / power;
    return power * (part < 1.5 ? 1.0 : part < 3.5 ? 2.0 : part < 7.5 ? 5.0 : 10.0);
}

static void open_svg(const frame *f, const bl_chart *chart, double height) {
    fprintf(f->out, "<figure><svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", WIDTH, height);
    bl_html_text(f->out, chart->title);
    fputs("\">", f->out);
}

static void fit(frame *f, const bl_chart *chart, const bl_chart_series *series, int n_series) {
    f->low = chart->least;
    f->high = isnan(chart->line) ? chart->least : fmax(chart->least, chart->line);
    for (int s = 0; s < n_series; s++) {
        for (size_t i = 0; i < f->n; i++) {
            if (isfinite(series[s].values[i])) {
                f->low = fmin(f->low, series[s].values[i]);
                f->high = fmax(f->high, series[s].values[i]);
            }
        }
    }
    if (!(f->high > f->low))
        f->high = f->low + (f->low != 0.0 ? 0.1 * fabs(f->low) : 1.0);
    const double tick = tick_of(f->high - f->low);
    f->low = floor(f->low / tick + 1e-9) * tick;
    f->high = ceil(f->high / tick - 1e-9) * tick;
}

static void draw_y(const frame *f, const bl_chart *chart) {
    const double tick = tick_of(f->high - f->low);
    for (double y = f->low; y <= f->high + tick / 2; y += tick) {
        const double at = y_of(f, y);
        fprintf(f->out,
                "<line class=\"axis\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"soft\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>",
                LEFT, WIDTH - RIGHT, at, at, LEFT - 8, at + 4, fabs(y) < tick / 100 ? 0.0 : y);
    }
    fprintf(f->out,
            "<text class=\"soft\" transform=\"translate(14 %g) rotate(-90)\" "
            "text-anchor=\"middle\">",
            (TOP + HEIGHT - BOTTOM) / 2);
    bl_html_text(f->out, chart->y);
    fputs("</text>", f->out);
}

static long label_of(const frame *f, const bl_chart *chart, size_t i) {
    const size_t at = i * f->per;
    return chart->x_label != NULL ? (long)chart->x_label[at] : (long)at;
}

static void draw_x(const frame *f, const bl_chart *chart, double centre) {
    const size_t every = f->shown > 12 ? (f->shown + 11) / 12 : 1;
    for (size_t i = 0; i < f->shown; i += every)
        fprintf(f->out,
                "<text class=\"soft\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%ld</text>",
                centre > 0.0 ? LEFT + ((double)i + 0.5) * centre : x_of(f, (double)i),
                HEIGHT - BOTTOM + 16, label_of(f, chart, i));
    fprintf(f->out, "<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    bl_html_text(f->out, chart->x);
    if (f->per > 1)
        fprintf(f->out, " (each point: the largest of %zu)", f->per);
    fputs("</text>", f->out);
}

static void draw_legend(const frame *f, const bl_chart *chart, const bl_chart_series *series,
                        int n_series) {
    double x = LEFT;
    const int room = (int)(((WIDTH - LEFT) / (n_series + 1) - 44.0) / 7.0);
    for (int s = 0; s <= n_series; s++) {
        char name[64];
        const bool is_line = s == n_series;
        if (is_line && isnan(chart->line))
            break;
        snprintf(name, sizeof name, "%.*s", room < 63 ? room : 63,
                 is_line ? chart->line_name : series[s].name);
        if (is_line)
            fprintf(f->out, "<line class=\"mark\" x1=\"%.0f\" x2=\"%.0f\" y1=\"13\" y2=\"13\"/>", x,
                    x + 18);
        else
            fprintf(f->out, "<rect class=\"f%d\" x=\"%.0f\" y=\"7\" width=\"18\" height=\"11\"/>",
                    chart->first_colour + s, x);
        fprintf(f->out, "<text x=\"%.0f\" y=\"17\">", x + 24);
        bl_html_text(f->out, name);
        fputs("</text>", f->out);
        x += 44.0 + 7.0 * (double)strlen(name);
    }
}

static void draw_mark(const frame *f, const bl_chart *chart) {
    if (!isnan(chart->line))
        fprintf(f->out, "<line class=\"mark\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                WIDTH - RIGHT, y_of(f, chart->line), y_of(f, chart->line));
}

/* Points that follow each other without a gap. */
static void draw_line(const frame *f, const double *values, int colour) {
    bool open = false;
    for (size_t i = 0; i < f->shown; i++) {
        const double value = merged(f, values, i);
        if (isfinite(value)) {
            fprintf(f->out, open ? " " : "<polyline class=\"l%d\" points=\"", colour);
            fprintf(f->out, "%.1f,%.1f", x_of(f, (double)i), y_of(f, value));
        }
        if (open && !isfinite(value))
            fputs("\"/>", f->out);
        open = isfinite(value);
    }
    if (open)
        fputs("\"/>", f->out);
}

static frame frame_of(FILE *out, size_t n, size_t most) {
    frame f = {.out = out, .n = n, .per = (n + most - 1) / most};
    f.per = f.per > 0 ? f.per : 1;
    f.shown = (n + f.per - 1) / f.per;
    return f;
}

void bl_chart_lines(FILE *out, const bl_chart *chart, const bl_chart_series *series, int n_series,
                    size_t n) {
    frame f = frame_of(out, n, MOST_POINTS);
    fit(&f, chart, series, n_series);
    open_svg(&f, chart, HEIGHT);
    draw_y(&f, chart);
    draw_x(&f, chart, 0.0);
    for (int s = 0; s < n_series; s++)
        draw_line(&f, series[s].values, chart->first_colour + s);
    draw_mark(&f, chart);
    draw_legend(&f, chart, series, n_series);
    fputs("</svg></figure>\n", out);
}

void bl_chart_bars(FILE *out, const bl_chart *chart, const bl_chart_series *series, int n_series,
                   size_t n) {
    frame f = frame_of(out, n, MOST_BARS);
    fit(&f, chart, series, n_series);
    open_svg(&f, chart, HEIGHT);
    draw_y(&f, chart);
    const double group = (WIDTH - LEFT - RIGHT) / (double)(f.shown > 0 ? f.shown : 1);
    const double bar = 0.8 * group / n_series;
    draw_x(&f, chart, group);
    for (size_t i = 0; i < f.shown; i++) {
        for (int s = 0; s < n_series; s++) {
            const double value = merged(&f, series[s].values, i);
            if (isfinite(value) && value > f.low)
                fprintf(out,
                        "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                        "height=\"%.1f\"/>",
                        chart->first_colour + s, LEFT + ((double)i + 0.1) * group + s * bar,
                        y_of(&f, value), bar, y_of(&f, f.low) - y_of(&f, value));
        }
    }
    draw_mark(&f, chart);
    draw_legend(&f, chart, series, n_series);
    fputs("</svg></figure>\n", out);
}

/* ---- heat maps --------------------------------------------------------------------------------*/

/* A cell has the colour of the last limit that it reaches. */
static const double LIMITS[] = {0.0, 0.8, 0.95, 1.05, 1.15, 1.3, 1.5, 2.0, 3.0};
#define N_COLOURS ((int)(sizeof LIMITS / sizeof LIMITS[0]))

static int colour_of(double value) {
    int colour = 0;
    while (colour + 1 < N_COLOURS && value >= LIMITS[colour + 1])
        colour++;
    return colour;
}

void bl_chart_heat_legend(FILE *out) {
    fprintf(out, "<figure><svg viewBox=\"0 0 %g 40\" role=\"img\" aria-label=\"colours\">", WIDTH);
    for (int c = 0; c < N_COLOURS; c++) {
        const double x = LEFT + 90.0 * c;
        fprintf(out, "<rect class=\"h%d\" x=\"%g\" y=\"4\" width=\"86\" height=\"14\"/>", c, x);
        if (c == 0)
            fprintf(out, "<text class=\"soft\" x=\"%g\" y=\"33\">below %g</text>", x, LIMITS[1]);
        else
            fprintf(out, "<text class=\"soft\" x=\"%g\" y=\"33\">from %g</text>", x, LIMITS[c]);
    }
    fputs("</svg></figure>\n", out);
}

typedef struct grid {
    const double *values;
    size_t n_rows, n_columns, per_row, per_column, rows, columns;
} grid;

static int cell_colour(const grid *g, size_t row, size_t column) {
    double most = 0.0;
    for (size_t r = row * g->per_row; r < (row + 1) * g->per_row && r < g->n_rows; r++) {
        for (size_t c = column * g->per_column;
             c < (column + 1) * g->per_column && c < g->n_columns; c++)
            most = fmax(most, g->values[r * g->n_columns + c]);
    }
    return colour_of(most);
}

/* Neighbours of one colour are one rectangle. */
static void draw_row(FILE *out, const grid *g, size_t row, double y, double width, double height) {
    for (size_t from = 0; from < g->columns;) {
        const int colour = cell_colour(g, row, from);
        size_t to = from + 1;
        while (to < g->columns && cell_colour(g, row, to) == colour)
            to++;
        fprintf(out, "<rect class=\"h%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                colour, LEFT + (double)from * width, y, (double)(to - from) * width + 0.3,
                height + 0.3);
        from = to;
    }
}

static void label_axes(FILE *out, const grid *g, const int *row_label, const char *rows,
                       const char *columns, double width, double cell, double bottom) {
    const size_t every_row = (size_t)ceil(15.0 / cell), every_column = (size_t)ceil(36.0 / width);
    for (size_t r = 0; r < g->rows; r += every_row)
        fprintf(out, "<text class=\"soft\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%d</text>",
                LEFT - 8, 22 + ((double)r + 0.5) * cell + 4, row_label[r * g->per_row]);
    for (size_t c = 0; c < g->columns; c += every_column)
        fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%zu</text>",
                LEFT + ((double)c + 0.5) * width, bottom + 15, c * g->per_column);
    fprintf(out, "<text class=\"soft\" x=\"%g\" y=\"%.1f\" text-anchor=\"middle\">",
            (LEFT + WIDTH - RIGHT) / 2, bottom + 31);
    bl_html_text(out, columns);
    fprintf(out,
            "</text><text class=\"soft\" transform=\"translate(14 %.1f) rotate(-90)\" "
            "text-anchor=\"middle\">",
            (22 + bottom) / 2);
    bl_html_text(out, rows);
    fputs("</text>", out);
}

void bl_chart_heat(FILE *out, const char *title, const char *rows, const char *columns,
                   const double *values, const int *row_label, size_t n_rows, size_t n_columns) {
    grid g = {.values = values, .n_rows = n_rows, .n_columns = n_columns};
    g.per_row = (n_rows + MOST_ROWS - 1) / MOST_ROWS;
    g.per_column = (n_columns + MOST_COLUMNS - 1) / MOST_COLUMNS;
    g.rows = (n_rows + g.per_row - 1) / g.per_row;
    g.columns = (n_columns + g.per_column - 1) / g.per_column;
    const double width = (WIDTH - LEFT - RIGHT) / (double)g.columns;
    const double cell = g.rows > 60 ? 6.0 : g.rows > 20 ? 9.0 : 18.0;
    const double bottom = 22 + cell * (double)g.rows;
    fprintf(out, "<figure><svg viewBox=\"0 0 %g %.0f\" role=\"img\" aria-label=\"", WIDTH,
            bottom + 38);
    bl_html_text(out, title);
    fprintf(out, "\"><text x=\"%g\" y=\"14\">", LEFT);
    bl_html_text(out, title);
    if (g.per_row > 1 || g.per_column > 1)
        fprintf(out, " (each cell: the largest of %zu)", g.per_row * g.per_column);
    fputs("</text>", out);
    for (size_t r = 0; r < g.rows; r++)
        draw_row(out, &g, r, 22 + cell * (double)r, width, cell);
    label_axes(out, &g, row_label, rows, columns, width, cell, bottom);
    fputs("</svg></figure>\n", out);
}
