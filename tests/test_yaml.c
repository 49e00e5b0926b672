/* YAML as the tree of JSON: what is read, and what is refused by line. */
#include "tests/support/support.h"

#include "core/yaml.h"

#include <stdlib.h>
#include <string.h>

static bl_status parse(const char *text, json_t **root_p, bl_error *err) {
    return bl_yaml_parse(text, strlen(text), "f.yaml", root_p, err);
}

static void reads_what_json_can_say(void **state) {
    (void)state;
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"3", "3"},
        {"-17", "-17"},
        {"0", "0"},
        {"999999999999999999", "999999999999999999"},
        {"\"3\"", "\"3\""},
        {"'3'", "\"3\""},
        {"word", "\"word\""},
        {"two words # and a comment", "\"two words\""},
        {"[true, false, null, ~, yes]", "[true,false,null,null,\"yes\"]"},
        {"- 1\n- [2, 3]\n- a: 4\n", "[1,[2,3],{\"a\":4}]"},
        {"3: [0, 1]\nb:\n  c:\n", "{\"3\":[0,1],\"b\":{\"c\":null}}"},
        {"%YAML 1.1\n---\na: >\n  x\n  y\n...\n", "{\"a\":\"x y\\n\"}"},
        {"{}", "{}"},
        {"\"\\u00e9\"", "\"\303\251\""},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        json_t *root;
        assert_ok(parse(cases[c].yaml, &root, &err));
        char *text = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(text, cases[c].json);
        free(text);
        json_decref(root);
    }
}

static void the_rest_is_refused_by_line(void **state) {
    (void)state;
    static const struct {
        const char *yaml, *part;
        bl_status code;
        int line;
    } cases[] = {
        {"", "empty", BL_ERR_PARSE, -1},
        {"# nothing\n", "empty", BL_ERR_PARSE, -1},
        {"a: [1", "not YAML", BL_ERR_PARSE, 2},
        {"a: 1\nb: }\n", "not YAML", BL_ERR_PARSE, 2},
        {"a: 1\nb: 2\na: 3\n", "key \"a\" is given twice", BL_ERR_PARSE, 3},
        {"1: x\n\"1\": y\n", "key \"1\" is given twice", BL_ERR_PARSE, 2},
        {"a: &x 1\n", "anchors", BL_ERR_UNSUPPORTED, 1},
        {"a: &x [1]\n", "anchors", BL_ERR_UNSUPPORTED, 1},
        {"a: *x\n", "aliases", BL_ERR_UNSUPPORTED, 1},
        {"a:\n  <<: {b: 1}\n", "merge keys", BL_ERR_UNSUPPORTED, 2},
        {"a: !!int \"3\"\n", "tags", BL_ERR_UNSUPPORTED, 1},
        {"!x {a: 1}\n", "tags", BL_ERR_UNSUPPORTED, 1},
        {"[1, 2]: 3\n", "a key must be", BL_ERR_UNSUPPORTED, 1},
        {"a: 1\n---\nb: 2\n", "second document", BL_ERR_UNSUPPORTED, 2},
        {"a: 1.5", "\"1.5\" is not a whole number", BL_ERR_PARSE, 1},
        {"a: 010", "\"010\"", BL_ERR_PARSE, 1},
        {"a: -0", "\"-0\"", BL_ERR_PARSE, 1},
        {"a: +3", "\"+3\"", BL_ERR_PARSE, 1},
        {"a: 1_000", "\"1_000\"", BL_ERR_PARSE, 1},
        {"a: 0x10", "\"0x10\"", BL_ERR_PARSE, 1},
        {"a: 1:30", "\"1:30\"", BL_ERR_PARSE, 1},
        {"a: .5", "\".5\"", BL_ERR_PARSE, 1},
        {"a: 1e3", "\"1e3\"", BL_ERR_PARSE, 1},
        {"a: 1000000000000000000", "whole number", BL_ERR_PARSE, 1},
        {"a: \"x\\0y\"", "zero byte", BL_ERR_PARSE, 1},
        {"\"x\\0y\": 1", "zero byte", BL_ERR_PARSE, 1},
        {"a: \xff\xfe", "not YAML", BL_ERR_PARSE, 1},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested too deeply", BL_ERR_UNSUPPORTED, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        json_t *root = NULL;
        assert_fails(parse(cases[c].yaml, &root, &err), cases[c].code, cases[c].part);
        assert_string_equal(err.file, "f.yaml");
        assert_int_equal(err.line, cases[c].line);
        assert_null(root);
    }
}

/* Sixteen levels are read; a file of nothing but brackets ends early. */
static void depth_is_bounded(void **state) {
    (void)state;
    bl_error err;
    json_t *root;
    assert_ok(parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", &root, &err));
    json_decref(root);
    const size_t bytes = 100000;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, '[', bytes);
    assert_fails(bl_yaml_parse(text, bytes, "f.yaml", &root, &err), BL_ERR_UNSUPPORTED,
                 "nested too deeply");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_json_can_say),
        cmocka_unit_test(the_rest_is_refused_by_line),
        cmocka_unit_test(depth_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
