/*
 * main.c: the program: finds the verb, parses its options, runs it and says what went wrong.
 *
 * Exit codes: 0 done, 1 failure, 2 wrong usage. Data goes to standard output; messages, one line
 * for each error, to standard error. With --json an error is one JSON object on standard output
 * too.
 */
#include "cli/verbs.h"
#include "core/json.h"
#include "core/mem.h"
#include "runtime/transport.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BL_VERB_ADDRESS(name) &bl_verb_##name,
static const bl_verb *const verbs[] = {BL_VERBS(BL_VERB_ADDRESS) NULL};

static const bl_verb *find_verb(const char *name) {
    for (size_t v = 0; verbs[v] != NULL; v++) {
        if (strcmp(verbs[v]->name, name) == 0)
            return verbs[v];
    }
    return NULL;
}

static void print_overview(FILE *out) {
    fputs("usage: ballast VERB [OPTION...] [ARGUMENT...]\n\n"
          "Ballast records where the tokens of a Mixture-of-Experts model go, plans where its\n"
          "experts should live, and moves them there while the engine keeps serving.\n\n",
          out);
    for (size_t v = 0; verbs[v] != NULL; v++)
        fprintf(out, "  %-10s %s\n", verbs[v]->name, verbs[v]->summary);
    fputs("\nballast VERB --help shows a verb's options.\n", out);
}

static void print_man(FILE *out) {
    fputs(".TH BALLAST 1 \"\" \"ballast " BL_VERSION "\"\n"
          ".SH NAME\nballast \\- place and move the experts of Mixture\\-of\\-Experts models\n"
          ".SH SYNOPSIS\n.B ballast\n.I VERB\n[\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n"
          ".SH DESCRIPTION\n"
          "Ballast records where the tokens of a Mixture\\-of\\-Experts model go, plans where its\n"
          "experts should live on the measured cluster, and moves them there while the engine\n"
          "keeps serving. Data goes to standard output, messages to standard error.\n"
          ".SH VERBS\n",
          out);
    for (size_t v = 0; verbs[v] != NULL; v++)
        bl_opt_man(verbs[v], out);
    fputs(".SH EXIT STATUS\n0 done, 1 failure, 2 wrong usage.\n", out);
}

/* Asked of the words: the mistake may be one of those before --json. */
static bool says_json(int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0)
            return true;
    }
    return false;
}

static bool knows_json(const bl_verb *verb) {
    for (const bl_opt *opt = verb->options; opt != NULL && opt->name != NULL; opt++) {
        if (strcmp(opt->name, "json") == 0 && opt->type == BL_OPT_FLAG)
            return true;
    }
    return false;
}

static void print_json_error(const bl_error *err) {
    json_t *body = json_pack("{s:s, s:o}", "code", bl_status_name(err->code), "message",
                             bl_json_text(err->text[0] ? err->text : bl_status_string(err->code)));
    if (err->file[0] != '\0')
        json_object_set_new(body, "file", bl_json_text(err->file));
    if (err->line >= 0)
        json_object_set_new(body, "line", json_integer(err->line));
    if (err->byte >= 0)
        json_object_set_new(body, "byte", json_integer(err->byte));
    if (err->layer >= 0)
        json_object_set_new(body, "layer", json_integer(err->layer));
    if (err->expert >= 0)
        json_object_set_new(body, "expert", json_integer(err->expert));
    json_t *root = json_pack("{s:o}", "error", body);
    bl_json_write("-", root, 0, NULL);
    json_decref(root);
}

static int report(const bl_verb *verb, const bl_error *err, bool json) {
    char text[1024];
    bl_error_format(err, text, sizeof text);
    fprintf(stderr, "ballast %s: %s\n", verb->name, text);
    if (json)
        print_json_error(err);
    return err->code == BL_ERR_USAGE ? 2 : 1;
}

static int run_verb(const bl_verb *verb, int argc, char **argv) {
    bl_error err = BL_ERROR_INIT;
    void *options = bl_calloc(1, verb->options_bytes);
    if (options == NULL)
        return 1;
    if (verb->set_defaults != NULL)
        verb->set_defaults(options);
    int n_args = 0;
    bool help = false;
    const bool json = knows_json(verb) && says_json(argc, argv); /* parsing reorders the words */
    bl_status st = bl_opt_parse(verb, options, argc, argv, &n_args, &help, &err);
    int exit_code = 0;
    if (st >= 0 && help) {
        bl_opt_help("ballast", verb, stdout);
    } else if (st >= 0) {
        st = verb->run(options, n_args, argv, &err);
    }
    if (st < 0) {
        if (err.code >= 0)
            bl_fail(&err, st, "%s", bl_status_string(st));
        exit_code = report(verb, &err, json);
    } else if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "ballast %s: cannot write to standard output\n", verb->name);
        exit_code = 1;
    }
    free(options);
    return exit_code;
}

static void print_version(FILE *out) {
    fputs("ballast " BL_VERSION "\n", out);
}

/* Print a page; a full disk is a failure like any other. */
static int finish_page(void) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fputs("ballast: cannot write to standard output\n", stderr);
    return 1;
}

static int print_page(void (*print)(FILE *)) {
    print(stdout);
    return finish_page();
}

static int unknown_verb(const char *name, int argc, char **argv) {
    const char *names[sizeof verbs / sizeof verbs[0]] = {NULL};
    size_t n = 0;
    for (; verbs[n] != NULL; n++)
        names[n] = verbs[n]->name;
    const char *hint = bl_nearest_name(name, names, n);
    bl_error err = BL_ERROR_INIT;
    bl_fail(&err, BL_ERR_USAGE, "unknown verb \"%s\"%s%s%s; see ballast --help", name,
            hint != NULL ? "; did you mean " : "", hint != NULL ? hint : "",
            hint != NULL ? "?" : "");
    fprintf(stderr, "ballast: %s\n", err.text);
    if (says_json(argc, argv))
        print_json_error(&err);
    return 2;
}

static int run_help(int argc, char **argv) {
    if (argc == 0)
        return print_page(print_overview);
    if (strcmp(argv[0], "--man") == 0)
        return print_page(print_man);
    const bl_verb *verb = find_verb(argv[0]);
    if (verb == NULL)
        return unknown_verb(argv[0], argc, argv);
    bl_opt_help("ballast", verb, stdout);
    return finish_page();
}

int main(int argc, char **argv) {
    bl_ucx_leave_hangup();
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is a failed write and not a death */
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        return print_page(print_version);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return run_help(0, NULL);
    if (strcmp(name, "help") == 0)
        return run_help(argc - 2, argv + 2);
    const bl_verb *verb = find_verb(name);
    return verb != NULL ? run_verb(verb, argc - 2, argv + 2)
                        : unknown_verb(name, argc - 2, argv + 2);
}
