/*
 * html.h: one self-contained HTML page: no scripts, no external resources, light and dark by CSS.
 *
 * All text that comes from files or the command line goes through bl_html_text(). Charts are inline
 * SVG; they take arrays, scale themselves and cut down what is too much to draw, so that a page's
 * size does not grow with the trace: lines keep the largest of neighbouring points, heat maps the
 * largest of neighbouring cells.
 */
#ifndef BL_CLI_HTML_H
#define BL_CLI_HTML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

void bl_html_begin(FILE *out, const char *title);
void bl_html_end(FILE *out);

/* Escaped; control characters become spaces. */
void bl_html_text(FILE *out, const char *text);

/* A number for people: 4 significant digits, or a dash where there is none. */
void bl_html_number(FILE *out, double value);
/* 1.5 GB, 320 kB, ... */
void bl_html_bytes(FILE *out, double bytes);
/* 12.3 ms, ... */
void bl_html_seconds(FILE *out, double seconds);

typedef struct bl_chart_series {
    const char *name;
    const double *values; /* NaN: a gap */
} bl_chart_series;

typedef struct bl_chart {
    const char *title;     /* also what screen readers say */
    const char *x, *y;     /* axis labels with units */
    const int *x_label;    /* [n] of every point, or NULL: its number */
    double least;          /* the axis begins here or lower */
    double line;           /* a dashed line across, NaN: none */
    const char *line_name; /* what it is */
    int first_colour;      /* of the series: 0 is the grey of what there was before */
} bl_chart;

/* Up to 5 series of n values over x. */
void bl_chart_lines(FILE *out, const bl_chart *chart, const bl_chart_series *series, int n_series,
                    size_t n);
/* The same as groups of bars, for up to 3 series. */
void bl_chart_bars(FILE *out, const bl_chart *chart, const bl_chart_series *series, int n_series,
                   size_t n);

/* values[n_rows][n_columns], 1 is the mean; row_label[n_rows]. */
void bl_chart_heat(FILE *out, const char *title, const char *rows, const char *columns,
                   const double *values, const int *row_label, size_t n_rows, size_t n_columns);
/* What the colours of heat maps mean. */
void bl_chart_heat_legend(FILE *out);

#endif
