#include "base/jsonw.h"

#include "base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The comma before a key or value, unless it is the first of its level or follows its key. */
static void write_comma(struct jsonw *w)
{
    if (w->comma && !w->key) buf_putc(w->out, ',');
    w->comma = true;
    w->key = false;
}

static void open_level(struct jsonw *w, char c, char close)
{
    assert(w->depth < (int)sizeof w->close);
    write_comma(w);
    buf_putc(w->out, c);
    w->close[w->depth++] = close;
    w->comma = false;
}

void jsonw_obj(struct jsonw *w) { open_level(w, '{', '}'); }
void jsonw_arr(struct jsonw *w) { open_level(w, '[', ']'); }

/* The closing bracket was remembered when the level was opened. */
void jsonw_end(struct jsonw *w)
{
    assert(w->depth > 0);
    buf_putc(w->out, w->close[--w->depth]);
    w->comma = true;
}

/* DEL is escaped too: it is valid JSON but disturbs terminals that show logs. */
static void write_quoted(struct buf *b, struct str s)
{
    buf_putc(b, '"');
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        int32_t cp;
        int n = utf8_next(str_skip(s, i), &cp);
        if (cp < 0) buf_puts(b, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\') buf_putc(b, '\\'), buf_putc(b, (char)c);
        else if (c == '\n') buf_puts(b, "\\n");
        else if (c == '\t') buf_puts(b, "\\t");
        else if (c == '\r') buf_puts(b, "\\r");
        else if (c < 0x20 || c == 0x7f) buf_printf(b, "\\u%04x", c);
        else buf_add(b, s.p + i, (size_t)n);
        i += (size_t)n;
    }
    buf_putc(b, '"');
}

void jsonw_key(struct jsonw *w, const char *key)
{
    write_comma(w);
    write_quoted(w->out, str_c(key));
    buf_putc(w->out, ':');
    w->key = true;
}

void jsonw_str(struct jsonw *w, struct str s)
{
    write_comma(w);
    write_quoted(w->out, s);
}

void jsonw_int(struct jsonw *w, int64_t v)
{
    write_comma(w);
    buf_printf(w->out, "%lld", (long long)v);
}

/* %g with more and more digits until the text parses to the same double. */
void jsonw_num(struct jsonw *w, double v)
{
    char text[40];

    write_comma(w);
    if (!isfinite(v)) {
        buf_puts(w->out, "null");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) { /* 17 always suffice for a double */
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_puts(w->out, text);
}

void jsonw_bool(struct jsonw *w, bool v)
{
    write_comma(w);
    buf_puts(w->out, v ? "true" : "false");
}

void jsonw_null(struct jsonw *w)
{
    write_comma(w);
    buf_puts(w->out, "null");
}

void jsonw_raw(struct jsonw *w, struct str json)
{
    write_comma(w);
    buf_put_str(w->out, json);
}
