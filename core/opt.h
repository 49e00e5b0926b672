/*
 * opt.h: command lines as data.
 *
 * A verb describes its options in one table; parsing, range checks, units, --help, the nearest-name
 * hint and the man page's OPTIONS section all come from it. A value is stored at `offset` in the
 * verb's own options struct, which the caller fills with the defaults beforehand (so a default is
 * written once, in the verb's initialiser, and --help shows it from there).
 *
 *     typedef struct { const char *out; int64_t seed; bool json; bl_opt_list traces; } plan_opts;
 *     static const bl_opt OPTIONS[] = {
 *         {"output", 'o', BL_OPT_STRING, offsetof(plan_opts, out), .metavar = "PLAN",
 *          .required = true, .help = "where to write the plan"},
 *         {"seed", 0, BL_OPT_INT, offsetof(plan_opts, seed), .metavar = "N",
 *          .min = 0, .max = 1e15, .help = "seed of the search"},
 *         {"json", 0, BL_OPT_FLAG, offsetof(plan_opts, json), .help = "answer in JSON"},
 *         {0}};
 *
 * Spellings: --name value, --name=value, -n value, -nvalue; "--" ends the options; everything else
 * is a positional argument. Sizes take K M G T (1024-based: Ki also accepted), durations ns us ms s
 * m h.
 */
#ifndef BL_CORE_OPT_H
#define BL_CORE_OPT_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum bl_opt_type {
    BL_OPT_FLAG,     /* bool; --no-name clears it */
    BL_OPT_STRING,   /* const char *, borrowed from argv */
    BL_OPT_INT,      /* int64_t */
    BL_OPT_REAL,     /* double */
    BL_OPT_BYTES,    /* int64_t, e.g. 64M */
    BL_OPT_DURATION, /* double, seconds, e.g. 250ms; a bare number is seconds */
    BL_OPT_CHOICE,   /* int: index into `choices` */
    BL_OPT_RANGE,    /* bl_opt_range: A:B, A: or :B, half-open */
    BL_OPT_LIST      /* bl_opt_list: the option may be given again */
} bl_opt_type;

typedef struct bl_opt_range {
    int64_t first, end; /* half-open; end = INT64_MAX when not given */
    bool given;
} bl_opt_range;

#define BL_OPT_LIST_MAX 1024
typedef struct bl_opt_list {
    int n;
    const char *items[BL_OPT_LIST_MAX]; /* borrowed from argv */
} bl_opt_list;

typedef struct bl_opt {
    const char *name; /* long name, without dashes; NULL ends the table */
    char short_name;  /* 0: none */
    bl_opt_type type;
    size_t offset;              /* in the options struct */
    const char *metavar;        /* "FILE", "N"; NULL for flags and choices */
    double min, max;            /* for numbers; both 0: no limit */
    const char *const *choices; /* BL_OPT_CHOICE: NULL-terminated names */
    const char *help;           /* one phrase, lower case, no full stop */
    bool required;
} bl_opt;

typedef struct bl_verb {
    const char *name;      /* "plan" */
    const char *arguments; /* "TRACE..." or "" */
    const char *summary;   /* one phrase: what the verb does */
    const char *details;   /* paragraphs for --help and the man page; may be NULL */
    const bl_opt *options;
    size_t options_bytes;                /* size of the options struct */
    void (*set_defaults)(void *options); /* optional; the struct arrives zeroed */
    int min_args, max_args;              /* positional arguments; max_args -1: any number */
    /* Runs with parsed options; 0 ok, otherwise a bl_status (positive: ok but). */
    bl_status (*run)(void *options, int n_args, char **args, bl_error *err);
} bl_verb;

/* Parse argv[0 .. argc-1] (without program and verb names). Positional arguments are moved to the
 * front of argv and counted in *n_args. BL_ERR_USAGE with a hint on any mistake. `*help` is set and
 * parsing stops when --help or -h is met. */
bl_status bl_opt_parse(const bl_verb *verb, void *options, int argc, char **argv, int *n_args,
                       bool *help, bl_error *err);

/* Print the help page of a verb; `program` is "ballast". */
void bl_opt_help(const char *program, const bl_verb *verb, FILE *out);

/* The same as a troff section for the man page. */
void bl_opt_man(const bl_verb *verb, FILE *out);

/* The name nearest to `word` (edit distance at most 2 or a third of its length), or NULL. */
const char *bl_nearest_name(const char *word, const char *const *names, size_t n_names);

/* "64M", "1.5G" -> bytes; "250ms" -> seconds. False when malformed or out of range. */
bool bl_parse_bytes(const char *text, int64_t *bytes);
bool bl_parse_duration(const char *text, double *seconds);

#endif
