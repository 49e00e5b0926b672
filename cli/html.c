/* html.c: the frame of a page and its words. Charts are in charts.c. */
#include "cli/html.h"

#include <math.h>

static const char STYLE[] =
    ":root{color-scheme:light dark;--ground:#fdfdfc;--ink:#1d1f23;--soft:#5b616b;--rule:#d9dce1;"
    "--panel:#f3f4f2;--s0:#8a8f98;--s1:#0b6bcb;--s2:#c2500a;--s3:#2e7d32;--s4:#7b3fb5;"
    "--h0:#c9d3de;--h1:#dfe6ea;--h2:#f1f1ea;--h3:#f6e3bf;--h4:#f0c48a;--h5:#e69a5d;--h6:#d46a3c;"
    "--h7:#b23a24;--h8:#7d1416;--good:#2e7d32;--bad:#b3261e;--mid:#9a6700}"
    "@media(prefers-color-scheme:dark){:root{--ground:#15171a;--ink:#e7e9ec;--soft:#a2a9b4;"
    "--rule:#363b42;--panel:#1e2125;--s0:#969ca6;--s1:#62b0ff;--s2:#ff9b57;--s3:#7bd17f;"
    "--s4:#c79bf2;--h0:#22303c;--h1:#2a3a44;--h2:#343a36;--h3:#5a4a2a;--h4:#7d5a2a;--h5:#a8662c;"
    "--h6:#cf6f38;--h7:#ee8560;--h8:#ffb3a0;--good:#7bd17f;--bad:#ff8a80;--mid:#e3b341}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--ground);color:var(--ink);"
    "font:15px/1.5 system-ui,'Segoe UI',Roboto,'Noto Sans',sans-serif}"
    "main{max-width:1040px;margin:0 auto;padding:2rem 1.25rem 4rem}"
    "h1{font-size:1.7rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.4rem 0 "
    ".4rem;"
    "padding-top:.8rem;border-top:1px solid var(--rule)}h3{font-size:1rem;margin:1.2rem 0 .3rem}"
    "p{margin:.4rem 0;max-width:46rem}.soft{color:var(--soft)}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.6rem 0}"
    "th,td{padding:.28rem .8rem .28rem 0;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--rule)}th{color:var(--soft);font-weight:500}"
    "th:first-child,td:first-child{text-align:left}td.name{max-width:22rem;overflow:hidden;"
    "text-overflow:ellipsis}"
    ".verdict{background:var(--panel);border-left:4px solid var(--mid);padding:.7rem 1rem;"
    "margin:1rem 0}.verdict b{font-size:1.1rem}.recommend{border-color:var(--good)}"
    ".not{border-color:var(--bad)}code{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;"
    "background:var(--panel);padding:.1rem .3rem}pre{background:var(--panel);padding:.7rem 1rem;"
    "overflow-x:auto}pre code{padding:0}figure{margin:.8rem 0}"
    "svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;"
    "fill:var(--ink)}svg .soft{fill:var(--soft)}svg .axis{stroke:var(--rule);stroke-width:1}"
    "svg .mark{stroke:var(--soft);stroke-dasharray:5 4;stroke-width:1.2}"
    "svg polyline{fill:none;stroke-width:1.7}"
    ".l0{stroke:var(--s0)}.l1{stroke:var(--s1)}.l2{stroke:var(--s2)}.l3{stroke:var(--s3)}"
    ".l4{stroke:var(--s4)}.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}"
    ".f3{fill:var(--s3)}.f4{fill:var(--s4)}.h0{fill:var(--h0)}.h1{fill:var(--h1)}"
    ".h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}"
    ".h6{fill:var(--h6)}.h7{fill:var(--h7)}.h8{fill:var(--h8)}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1rem}";

void bl_html_text(FILE *out, const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        switch (*at) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc(*at < 0x20 || *at == 0x7f ? ' ' : *at, out);
        }
    }
}

void bl_html_begin(FILE *out, const char *title) {
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
          out);
    bl_html_text(out, title);
    fprintf(out, "</title><style>%s</style></head>\n<body><main>\n", STYLE);
}

void bl_html_end(FILE *out) {
    fputs("</main></body></html>\n", out);
}

void bl_html_number(FILE *out, double value) {
    if (isfinite(value))
        fprintf(out, "%.4g", value);
    else
        fputs("–", out);
}

static void scaled(FILE *out, double value, double step, const char *const *units, int n) {
    int unit = 0;
    if (!isfinite(value)) {
        fputs("–", out);
        return;
    }
    while (unit + 1 < n && fabs(value) >= step) {
        value /= step;
        unit++;
    }
    fprintf(out, "%.3g %s", value, units[unit]);
}

void bl_html_bytes(FILE *out, double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    scaled(out, bytes, 1000.0, units, 6);
}

void bl_html_seconds(FILE *out, double seconds) {
    static const char *const units[] = {"µs", "ms", "s"};
    scaled(out, seconds * 1e6, 1000.0, units, 3);
}
