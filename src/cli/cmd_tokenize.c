/* cmd_tokenize.c - tern tokenize: text to ids and back. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "token/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_INPUT = 1 << 29 };

static const struct verb verb = {
    "tokenize", "tern tokenize [-m MODEL] [--file F] [--special] [--jsonl | --decode]",
    "Text from a file or stdin becomes one line with a JSON array of ids. MODEL is a GGUF file, a "
    "Hugging\n"
    "Face folder, a tokenizer.json or a tokenizer.json.gz.\n"
    "  echo -n 'Once upon a time' | tern tokenize -m model.gguf\n"
    "  tern tokenize -m tokenizer.json --jsonl < strings.jsonl     one JSON string a line, one "
    "array a line\n"
    "  echo '[403, 407, 261]' | tern tokenize -m model.gguf --decode"
};

struct job {
    const char *model, *file;
    bool special, plain, jsonl, decode;
    struct tokenizer *t;
    FILE *in;
    struct buf line; /* of output */
    struct ids ids;
};

/* ---- reading JSON strings ---- */

static int hex4(const char *p, const char *end)
{
    int v = 0;

    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = tolower((unsigned char)p[i]);
        if (!isxdigit(c)) return -1;
        v = v * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

/* Behind "\u": one or, for a pair of surrogates, two of them. A lone surrogate is U+FFFD. */
static bool put_unicode(const char **p, const char *end, struct buf *out)
{
    int cp = hex4(*p, end), low;
    char c[4];

    if (cp < 0) return false;
    *p += 4;
    if (cp >= 0xd800 && cp < 0xdc00 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u' &&
        (low = hex4(*p + 2, end)) >= 0xdc00 && low < 0xe000) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        *p += 6;
    }
    if (cp >= 0xd800 && cp < 0xe000) cp = 0xfffd;
    buf_add(out, c, (size_t)utf8_put(c, cp));
    return true;
}

static bool put_escape(const char **p, const char *end, struct buf *out)
{
    static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    char c = *(*p)++;
    const char *at = c ? strchr(names, c) : NULL;

    if (c == 'u') return put_unicode(p, end, out);
    if (at) buf_putc(out, codes[at - names]);
    return at != NULL;
}

/* "..." and nothing else but white space; false: it is not that. */
static bool read_json_string(struct str line, struct buf *out)
{
    const char *p, *end;

    line = str_trim(line);
    if (line.n < 2 || line.p[0] != '"' || line.p[line.n - 1] != '"') return false;
    p = line.p + 1, end = line.p + line.n - 1;
    while (p < end) {
        unsigned char c = (unsigned char)*p++;
        if (c == '"' || c < 0x20) return false;
        if (c != '\\') buf_putc(out, (char)c);
        else if (p == end || !put_escape(&p, end, out)) return false;
    }
    return true;
}

/* ---- the three ways ---- */

static void put_ids(struct buf *b, const struct ids *ids)
{
    char digits[12];

    buf_putc(b, '[');
    for (size_t i = 0; i < ids->n; i++) {
        char *p = digits + sizeof digits;
        uint32_t v = (uint32_t)ids->p[i];
        do *--p = (char)('0' + v % 10);
        while (v /= 10);
        if (i) buf_add(b, ", ", 2);
        buf_add(b, p, (size_t)(digits + sizeof digits - p));
    }
    buf_puts(b, "]\n");
}

static int put_out(struct job *j, struct err *e)
{
    if (fwrite(j->line.p, 1, j->line.n, stdout) != j->line.n)
        return err_set(e, E_IO, "stdout: %s", strerror(errno));
    return OK;
}

static int encode_text(struct job *j, struct str text, struct err *e)
{
    unsigned flags = (j->special ? ENCODE_SPECIAL : 0) | (j->plain ? ENCODE_PLAIN : 0);
    int rc;

    j->ids.n = 0;
    buf_clear(&j->line);
    if ((rc = tokenizer_encode(j->t, text, flags, &j->ids, e)) != OK) return rc;
    put_ids(&j->line, &j->ids);
    return put_out(j, e);
}

static int encode_lines(struct job *j, struct err *e)
{
    struct buf text = { 0 };
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = OK;

    for (long at = 1; rc == OK && (n = getline(&line, &cap, j->in)) >= 0; at++) {
        struct str s = str_trim(str_of(line, (size_t)n));
        if (!s.n) continue;
        buf_clear(&text);
        if (!read_json_string(s, &text))
            rc = err_set(e, E_FORMAT, "line %ld is not a JSON string", at);
        else if ((rc = encode_text(j, buf_str(&text), e)) != OK) err_wrap(e, "line %ld", at);
    }
    if (rc == OK && ferror(j->in)) rc = err_set(e, E_IO, "reading: %s", strerror(errno));
    free(line);
    buf_release(&text);
    return rc;
}

static int read_all(struct job *j, struct buf *out, struct err *e)
{
    size_t n;

    do {
        buf_reserve(out, 1 << 16);
        n = fread(out->p + out->n, 1, out->cap - out->n, j->in);
        out->n += n;
        if (out->n > MAX_INPUT)
            return err_set(e, E_INVALID, "the input has more than %d bytes", MAX_INPUT);
    } while (n);
    return ferror(j->in) ? err_set(e, E_IO, "reading: %s", strerror(errno)) : OK;
}

/* Numbers with white space, commas and brackets between them. */
static int read_ids(struct str s, const struct tokenizer *t, struct ids *out, struct err *e)
{
    for (size_t i = 0; i < s.n;) {
        size_t from = i;
        int64_t id;
        if (isspace((unsigned char)s.p[i]) || strchr(",[]", s.p[i])) {
            i++;
            continue;
        }
        while (i < s.n && !isspace((unsigned char)s.p[i]) && !strchr(",[]", s.p[i])) i++;
        struct str word = str_of(s.p + from, i - from);
        if (!str_to_i64(word, &id))
            return err_set(e, E_FORMAT, "'%.*s' is not an id", STR_ARG(str_take(word, 40)));
        if (id < 0 || id >= tokenizer_n(t))
            return err_set(e, E_FORMAT, "id %lld, but the tokenizer has 0 to %d", (long long)id,
                           tokenizer_n(t) - 1);
        ids_push(out, (int32_t)id);
    }
    return OK;
}

static int work(struct job *j, struct err *e)
{
    struct buf text = { 0 };
    int rc;

    if (j->jsonl) return encode_lines(j, e);
    if ((rc = read_all(j, &text, e)) == OK) {
        if (!j->decode) rc = encode_text(j, buf_str(&text), e);
        else if ((rc = read_ids(buf_str(&text), j->t, &j->ids, e)) == OK) {
            tokenizer_decode(j->t, j->ids.p, j->ids.n, j->plain, &j->line);
            rc = put_out(j, e);
        }
    }
    buf_release(&text);
    return rc;
}

static int run(struct job *j, struct err *e)
{
    int rc;

    if (!j->model) return err_set(e, E_NOTFOUND, "no model: say -m MODEL");
    j->in = j->file ? fopen(j->file, "rb") : stdin;
    if (!j->in) return err_set(e, E_IO, "%s: %s", j->file, strerror(errno));
    if ((rc = cmd_model(&j->model, e)) == OK) rc = tokenizer_open(&j->t, j->model, e);
    if (rc == OK) rc = work(j, e);
    if (rc == OK && fflush(stdout) != 0) rc = err_set(e, E_IO, "stdout: %s", strerror(errno));
    if (j->file) fclose(j->in);
    return rc;
}

int cmd_tokenize(int argc, char **argv)
{
    struct job j = { .model = NULL };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "whose tokenizer (default: the model that ships)" },
        { "--file", "-f", ARG_STR, &j.file, "F", "read this instead of stdin" },
        { "--special", NULL, ARG_FLAG, &j.special, NULL, "add BOS and EOS as the model does" },
        { "--plain", NULL, ARG_FLAG, &j.plain, NULL,
          "special tokens in the text are text; with --decode: leave them out" },
        { "--jsonl", NULL, ARG_FLAG, &j.jsonl, NULL,
          "one JSON string a line in, one array a line out" },
        { "--decode", "-d", ARG_FLAG, &j.decode, NULL, "ids in, text out" },
        { NULL, NULL, ARG_FLAG, NULL, NULL, NULL }
    };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, NULL, 0, &n_pos, &helped, &e);
    if (rc == OK && !helped && j.jsonl && j.decode)
        rc = err_set(&e, E_INVALID, "--jsonl and --decode do not go together");
    if (rc != OK) return cmd_usage("tokenize", &e);
    if (helped) return EXIT_OK;
    if (!j.model) j.model = cmd_default_model();
    rc = run(&j, &e);
    tokenizer_close(j.t);
    buf_release(&j.line);
    ids_release(&j.ids);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
