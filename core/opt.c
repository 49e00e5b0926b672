#include "core/opt.h"

#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values -----------------------------------------------------------------------------------*/

static bool parse_real(const char *text, double *out, const char **rest_p) {
    char *rest;
    errno = 0;
    const double number = strtod(text, &rest);
    if (rest == text || errno == ERANGE || !isfinite(number))
        return false;
    *out = number;
    *rest_p = rest;
    return true;
}

bool bl_parse_bytes(const char *text, int64_t *bytes) {
    double number;
    const char *rest;
    if (!parse_real(text, &number, &rest) || number < 0)
        return false;
    static const char units[] = "KMGT";
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;
    if (unit != NULL) {
        number = ldexp(number, 10 * (int)(unit - units + 1));
        rest++;
        if (*rest == 'i')
            rest++;
    }
    if (*rest == 'B')
        rest++;
    if (*rest != '\0' || number >= 0x1p62)
        return false;
    *bytes = (int64_t)number;
    return true;
}

bool bl_parse_duration(const char *text, double *seconds) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1},  {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                 {"s", 1}, {"m", 60},    {"h", 3600}};
    double number;
    const char *rest;
    if (!parse_real(text, &number, &rest) || number < 0)
        return false;
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        if (strcmp(rest, units[u].name) == 0) {
            *seconds = number * units[u].seconds;
            return true;
        }
    }
    return false;
}

static bool parse_int(const char *text, int64_t *out) {
    char *rest;
    errno = 0;
    const long long number = strtoll(text, &rest, 10);
    if (rest == text || *rest != '\0' || errno == ERANGE)
        return false;
    *out = number;
    return true;
}

static bool parse_range(const char *text, bl_opt_range *out) {
    const char *colon = strchr(text, ':');
    char first[32] = "";
    if (colon == NULL || (size_t)(colon - text) >= sizeof first)
        return false;
    memcpy(first, text, (size_t)(colon - text));
    bl_opt_range range = {0, INT64_MAX, true};
    if (first[0] != '\0' && !parse_int(first, &range.first))
        return false;
    if (colon[1] != '\0' && !parse_int(colon + 1, &range.end))
        return false;
    if (range.first < 0 || range.end <= range.first)
        return false;
    *out = range;
    return true;
}

/* ---- nearest name -----------------------------------------------------------------------------*/

/* Levenshtein distance; words longer than the row are "far". */
static size_t distance(const char *a, const char *b) {
    size_t row[64];
    const size_t n = strlen(b);
    if (n >= sizeof row / sizeof row[0])
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = replaced;
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *bl_nearest_name(const char *word, const char *const *names, size_t n_names) {
    const size_t third = strlen(word) / 3;
    size_t best = (third > 2 ? third : 2) + 1;
    const char *nearest = NULL;
    for (size_t n = 0; n < n_names; n++) {
        const size_t d = distance(word, names[n]);
        if (d < best) {
            best = d;
            nearest = names[n];
        }
    }
    return nearest;
}

/* ---- parsing ----------------------------------------------------------------------------------*/

#define MAX_OPTIONS 128

static const bl_opt *find_long(const bl_verb *verb, const char *name, size_t length) {
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL; opt++) {
        if (strlen(opt->name) == length && memcmp(opt->name, name, length) == 0)
            return opt;
    }
    return NULL;
}

static const bl_opt *find_short(const bl_verb *verb, char name) {
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL; opt++) {
        if (opt->short_name == name)
            return opt;
    }
    return NULL;
}

static bl_status unknown_option(const bl_verb *verb, const char *word, bl_error *err) {
    const char *names[MAX_OPTIONS];
    size_t n = 0;
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL && n < MAX_OPTIONS;
         opt++)
        names[n++] = opt->name;
    const char *bare = word + strspn(word, "-");
    const char *hint = bl_nearest_name(bare, names, n);
    return bl_fail(err, BL_ERR_USAGE, "unknown option %.60s%s%s%s; see ballast %s --help", word,
                   hint != NULL ? "; did you mean --" : "", hint != NULL ? hint : "",
                   hint != NULL ? "?" : "", verb->name);
}

static bl_status bad_value(const bl_opt *opt, const char *text, const char *wanted, bl_error *err) {
    return bl_fail(err, BL_ERR_USAGE, "--%s wants %s, not \"%.60s\"", opt->name, wanted, text);
}

static bl_status check_limits(const bl_opt *opt, double number, const char *text, bl_error *err) {
    if ((opt->min != 0 || opt->max != 0) && !(number >= opt->min && number <= opt->max))
        return bl_fail(err, BL_ERR_USAGE, "--%s is %.40s, but must be in [%.15g, %.15g]", opt->name,
                       text, opt->min, opt->max);
    return BL_OK;
}

static bl_status store_choice(const bl_opt *opt, int *out, const char *text, bl_error *err) {
    char all[256] = "";
    size_t used = 0, n = 0;
    for (; opt->choices[n] != NULL; n++) {
        if (strcmp(opt->choices[n], text) == 0) {
            *out = (int)n;
            return BL_OK;
        }
        if (used < sizeof all)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", n > 0 ? ", " : "",
                                     opt->choices[n]);
    }
    const char *hint = bl_nearest_name(text, opt->choices, n);
    return bl_fail(err, BL_ERR_USAGE, "--%s: \"%.60s\" is none of %s%s%s%s", opt->name, text, all,
                   hint != NULL ? "; did you mean " : "", hint != NULL ? hint : "",
                   hint != NULL ? "?" : "");
}

static bl_status store(const bl_opt *opt, void *options, const char *text, bl_error *err) {
    void *at = (char *)options + opt->offset;
    switch (opt->type) {
    case BL_OPT_FLAG:
        *(bool *)at = true;
        return BL_OK;
    case BL_OPT_STRING:
        *(const char **)at = text;
        return BL_OK;
    case BL_OPT_INT:
        if (!parse_int(text, at))
            return bad_value(opt, text, "a whole number", err);
        return check_limits(opt, (double)*(int64_t *)at, text, err);
    case BL_OPT_REAL: {
        const char *rest;
        if (!parse_real(text, at, &rest) || *rest != '\0')
            return bad_value(opt, text, "a number", err);
        return check_limits(opt, *(double *)at, text, err);
    }
    case BL_OPT_BYTES:
        if (!bl_parse_bytes(text, at))
            return bad_value(opt, text, "a size such as 64M", err);
        return check_limits(opt, (double)*(int64_t *)at, text, err);
    case BL_OPT_DURATION:
        if (!bl_parse_duration(text, at))
            return bad_value(opt, text, "a duration such as 250ms or 30s", err);
        return check_limits(opt, *(double *)at, text, err);
    case BL_OPT_CHOICE:
        return store_choice(opt, at, text, err);
    case BL_OPT_RANGE:
        return parse_range(text, at)
                   ? BL_OK
                   : bad_value(opt, text, "a half-open range A:B with A < B", err);
    case BL_OPT_LIST: {
        bl_opt_list *list = at;
        if (list->n == BL_OPT_LIST_MAX)
            return bl_fail(err, BL_ERR_USAGE, "--%s is given more than %d times", opt->name,
                           BL_OPT_LIST_MAX);
        list->items[list->n++] = text;
        return BL_OK;
    }
    }
    return BL_ERR_INTERNAL;
}

typedef struct parse {
    const bl_verb *verb;
    void *options;
    int argc, at;
    char **argv;
    bool seen[MAX_OPTIONS];
    bl_error *err;
} parse;

/* Store a value for `opt`: the attached one, or the next word. */
static bl_status take(parse *p, const bl_opt *opt, const char *attached) {
    const size_t index = (size_t)(opt - p->verb->options);
    if (opt->type == BL_OPT_FLAG) {
        if (attached != NULL)
            return bl_fail(p->err, BL_ERR_USAGE, "--%s takes no value", opt->name);
    } else if (attached == NULL) {
        if (p->at + 1 >= p->argc)
            return bl_fail(p->err, BL_ERR_USAGE, "--%s wants a value", opt->name);
        attached = p->argv[++p->at];
    }
    if (opt->type != BL_OPT_LIST && opt->type != BL_OPT_FLAG && p->seen[index])
        return bl_fail(p->err, BL_ERR_USAGE, "--%s is given twice", opt->name);
    p->seen[index] = true;
    return store(opt, p->options, attached, p->err);
}

static bl_status take_long(parse *p, const char *word) {
    const char *name = word + 2, *equals = strchr(name, '=');
    const size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const bl_opt *opt = find_long(p->verb, name, length);
    if (opt == NULL && strncmp(name, "no-", 3) == 0 && equals == NULL) {
        opt = find_long(p->verb, name + 3, length - 3);
        if (opt != NULL && opt->type == BL_OPT_FLAG) {
            *(bool *)((char *)p->options + opt->offset) = false;
            return BL_OK;
        }
        opt = NULL;
    }
    if (opt == NULL)
        return unknown_option(p->verb, word, p->err);
    return take(p, opt, equals != NULL ? equals + 1 : NULL);
}

static bl_status take_short(parse *p, const char *word) {
    const bl_opt *opt = find_short(p->verb, word[1]);
    if (opt == NULL)
        return unknown_option(p->verb, word, p->err);
    return take(p, opt, word[2] != '\0' ? word + 2 : NULL);
}

static bl_status check_counts(const parse *p, int n_args) {
    for (const bl_opt *opt = p->verb->options; opt != NULL && opt->name != NULL; opt++) {
        if (opt->required && !p->seen[opt - p->verb->options])
            return bl_fail(p->err, BL_ERR_USAGE, "--%s is missing; see ballast %s --help",
                           opt->name, p->verb->name);
    }
    if (n_args < p->verb->min_args)
        return bl_fail(p->err, BL_ERR_USAGE, "missing argument: %s; see ballast %s --help",
                       p->verb->arguments, p->verb->name);
    if (p->verb->max_args >= 0 && n_args > p->verb->max_args)
        return bl_fail(p->err, BL_ERR_USAGE, "unexpected argument \"%.60s\"; see ballast %s --help",
                       p->argv[p->verb->max_args], p->verb->name);
    return BL_OK;
}

bl_status bl_opt_parse(const bl_verb *verb, void *options, int argc, char **argv, int *n_args,
                       bool *help, bl_error *err) {
    parse p = {.verb = verb, .options = options, .argc = argc, .argv = argv, .err = err};
    int n = 0;
    bool only_arguments = false;
    *help = false;
    for (; p.at < argc; p.at++) {
        char *word = argv[p.at];
        if (only_arguments || word[0] != '-' || word[1] == '\0') {
            argv[n++] = word;
        } else if (strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = true;
            return BL_OK;
        } else {
            BL_TRY(word[1] == '-' ? take_long(&p, word) : take_short(&p, word));
        }
    }
    *n_args = n;
    return check_counts(&p, n);
}

/* ---- help and man page ------------------------------------------------------------------------*/

static void describe_default(const bl_opt *opt, const void *defaults, char *out, size_t out_bytes) {
    const void *at = (const char *)defaults + opt->offset;
    out[0] = '\0';
    if (opt->required)
        snprintf(out, out_bytes, " (required)");
    else if (opt->type == BL_OPT_CHOICE && *(const int *)at >= 0)
        snprintf(out, out_bytes, " (default %s)", opt->choices[*(const int *)at]);
    else if ((opt->type == BL_OPT_INT || opt->type == BL_OPT_BYTES) && *(const int64_t *)at > 0)
        snprintf(out, out_bytes, " (default %lld)", (long long)*(const int64_t *)at);
    else if ((opt->type == BL_OPT_REAL || opt->type == BL_OPT_DURATION) && *(const double *)at > 0)
        snprintf(out, out_bytes, " (default %g%s)", *(const double *)at,
                 opt->type == BL_OPT_DURATION ? " s" : "");
    else if (opt->type == BL_OPT_STRING && *(const char *const *)at != NULL)
        snprintf(out, out_bytes, " (default %s)", *(const char *const *)at);
}

/* "-o, --output PLAN" or "    --rule even|nearest". */
static void describe_spelling(const bl_opt *opt, char *out, size_t out_bytes) {
    size_t used = 0;
    if (opt->short_name != 0)
        used = (size_t)snprintf(out, out_bytes, "-%c, ", opt->short_name);
    used += (size_t)snprintf(out + used, out_bytes - used, "--%s", opt->name);
    if (opt->type == BL_OPT_CHOICE) {
        for (size_t n = 0; opt->choices[n] != NULL && used < out_bytes; n++)
            used += (size_t)snprintf(out + used, out_bytes - used, "%c%s", n > 0 ? '|' : ' ',
                                     opt->choices[n]);
    } else if (opt->metavar != NULL) {
        snprintf(out + used, out_bytes - used, " %s", opt->metavar);
    }
}

static void *make_defaults(const bl_verb *verb) {
    void *defaults = bl_calloc(1, verb->options_bytes);
    if (defaults != NULL && verb->set_defaults != NULL)
        verb->set_defaults(defaults);
    return defaults;
}

void bl_opt_help(const char *program, const bl_verb *verb, FILE *out) {
    void *defaults = make_defaults(verb);
    if (defaults == NULL)
        return;
    fprintf(out, "usage: %s %s%s%s%s\n\n%s.\n", program, verb->name,
            verb->options != NULL ? " [OPTION...]" : "", verb->arguments[0] ? " " : "",
            verb->arguments, verb->summary);
    if (verb->details != NULL)
        fprintf(out, "\n%s\n", verb->details);
    fputc('\n', out);
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL; opt++) {
        char spelling[256], fallback[160];
        describe_spelling(opt, spelling, sizeof spelling);
        describe_default(opt, defaults, fallback, sizeof fallback);
        if (strlen(spelling) > 26)
            fprintf(out, "  %s\n  %-26s  %s%s\n", spelling, "", opt->help, fallback);
        else
            fprintf(out, "  %-26s  %s%s\n", spelling, opt->help, fallback);
    }
    fprintf(out, "  %-26s  %s\n", "-h, --help", "show this page");
    free(defaults);
}

/* Text with the characters that troff would interpret escaped. */
static void troff_text(const char *text, FILE *out) {
    for (bool line_start = true; *text != '\0'; text++) {
        if (*text == '\\' || *text == '-')
            fputc('\\', out);
        else if (line_start && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        fputc(*text, out);
        line_start = *text == '\n';
    }
}

void bl_opt_man(const bl_verb *verb, FILE *out) {
    void *defaults = make_defaults(verb);
    if (defaults == NULL)
        return;
    fprintf(out, ".SS \"ballast %s%s%s\"\n", verb->name, verb->arguments[0] ? " " : "",
            verb->arguments);
    troff_text(verb->summary, out);
    fputs(".\n", out);
    if (verb->details != NULL) {
        fputs(".PP\n.nf\n", out);
        troff_text(verb->details, out);
        fputs("\n.fi\n", out);
    }
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL; opt++) {
        char spelling[256], fallback[160];
        describe_spelling(opt, spelling, sizeof spelling);
        describe_default(opt, defaults, fallback, sizeof fallback);
        fputs(".TP\n.B ", out);
        troff_text(spelling, out);
        fputc('\n', out);
        troff_text(opt->help, out);
        troff_text(fallback, out);
        fputc('\n', out);
    }
    free(defaults);
}
