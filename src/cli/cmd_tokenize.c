/* cmd_tokenize.c - tern tokenize: turn text into token ids, and back.
 *
 * Output is one line per text and is buffered: files of gigabytes are tokenized at the speed of the
 * tokenizer. */
#include "base/buf.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "token/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_INPUT = 1 << 29 };

static const struct verb verb = {
    "tokenize", "tern tokenize [-m MODEL] [--file F] [--special] [--jsonl | --decode]",
    "Prints the token ids of a text (a file, or stdin) as one JSON array. MODEL is a GGUF file, a\n"
    "Hugging Face folder, a tokenizer.json or a tokenizer.json.gz. With --jsonl each input line "
    "is\n"
    "a JSON string and each output line an array; with --decode ids become text.\n\n"
    "examples:\n"
    "  echo -n 'Once upon a time' | tern tokenize -m model.gguf\n"
    "  tern tokenize -m tokenizer.json --jsonl < strings.jsonl\n"
    "  echo '[403, 407, 261]' | tern tokenize -m model.gguf --decode"
};

struct job {
    struct guard guard;
    const char *model, *file;
    bool special, plain, jsonl, decode;
    struct tokenizer *t;
    struct buf line; /* of the output */
    struct ids ids;
};

/* ---- JSON strings ----
 *
 * Not by jansson: it rejects lone surrogates and bytes that are not UTF-8, and such
 * texts are just what tokenizers are tested with. */

/* Four hex digits, or -1. */
static int parse_hex4(const char *p, const char *end)
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

/* *p is behind "\u". Reads one code unit or a surrogate pair; a lone surrogate becomes U+FFFD. */
static bool add_unicode(const char **p, const char *end, struct buf *out)
{
    int cp = parse_hex4(*p, end), low;
    char c[4];

    if (cp < 0) return false;
    *p += 4;
    if (cp >= 0xd800 && cp < 0xdc00 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u' &&
        (low = parse_hex4(*p + 2, end)) >= 0xdc00 && low < 0xe000) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        *p += 6;
    }
    if (cp >= 0xd800 && cp < 0xe000) cp = 0xfffd;
    buf_add(out, c, (size_t)utf8_put(c, cp));
    return true;
}

/* *p is behind the backslash. */
static bool add_escape(const char **p, const char *end, struct buf *out)
{
    static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    char c = *(*p)++;
    const char *at = c ? strchr(names, c) : NULL;

    if (c == 'u') return add_unicode(p, end, out);
    if (at) buf_putc(out, codes[at - names]);
    return at != NULL;
}

/* Appends the text of a line that is one JSON string; false: it is not one. */
static bool parse_json_string(struct str line, struct buf *out)
{
    const char *p, *end;

    line = str_trim(line);
    if (line.n < 2 || line.p[0] != '"' || line.p[line.n - 1] != '"') return false;
    p = line.p + 1, end = line.p + line.n - 1;
    while (p < end) {
        unsigned char c = (unsigned char)*p++;
        if (c == '"' || c < 0x20) return false;
        if (c != '\\') buf_putc(out, (char)c);
        else if (p == end || !add_escape(&p, end, out)) return false;
    }
    return true;
}

/* ---- encoding and decoding ---- */

/* "[1, 2]\n". printf would take most of the time of a large file. */
static void add_ids(struct buf *b, const struct ids *ids)
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

/* stdio buffers: a flush for each line would be slow. */
static int print_line(struct job *j, struct err *e)
{
    int rc = buf_check(&j->line, e);

    if (rc == OK && j->line.n && fwrite(j->line.p, 1, j->line.n, stdout) != j->line.n)
        rc = err_set(e, E_IO, "cannot write to stdout: %s", strerror(errno));
    buf_clear(&j->line);
    return rc;
}

static int tokenize_text(struct job *j, struct str text, struct err *e)
{
    unsigned flags = (j->special ? ENCODE_SPECIAL : 0) | (j->plain ? ENCODE_PLAIN : 0);
    int rc;

    j->ids.n = 0;
    if ((rc = tokenizer_encode(j->t, text, flags, &j->ids, e)) != OK) return rc;
    if ((rc = ids_check(&j->ids, e)) != OK) return rc;
    add_ids(&j->line, &j->ids);
    return print_line(j, e);
}

static int encode_line(struct job *j, struct str line, struct buf *text, struct err *e)
{
    int rc;

    buf_clear(text);
    if (!parse_json_string(line, text)) return err_set(e, E_FORMAT, "not a JSON string");
    if ((rc = buf_check(text, e)) != OK) return rc;
    return tokenize_text(j, buf_str(text), e);
}

/* --jsonl. The message of an error gets the number of its line; empty lines are skipped. */
static int encode_lines(struct job *j, FILE *in, struct err *e)
{
    struct buf text = { 0 };
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = OK;

    for (long at = 1; rc == OK && (n = getline(&line, &cap, in)) >= 0; at++) {
        struct str s = str_trim(str_of(line, (size_t)n));
        if (s.n && (rc = encode_line(j, s, &text, e)) != OK) err_wrap(e, "line %ld", at);
    }
    if (rc == OK && !feof(in))
        rc = err_set(e, E_IO, "cannot read %s: %s", j->file ? j->file : "stdin", strerror(errno));
    free(line);
    buf_release(&text);
    return rc;
}

/* Numbers with white space, commas and brackets between them. */
static int parse_ids(struct str s, const struct tokenizer *t, struct ids *out, struct err *e)
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
            return err_set(e, E_FORMAT, "'%.*s' is not a token id", STR_ARG(str_take(word, 40)));
        if (id < 0 || id >= tokenizer_n(t))
            return err_set(e, E_FORMAT, "token id %lld: must be 0 to %d", (long long)id,
                           tokenizer_n(t) - 1);
        ids_push(out, (int32_t)id);
    }
    return ids_check(out, e);
}

static int decode_text(struct job *j, struct str text, struct err *e)
{
    int rc = parse_ids(text, j->t, &j->ids, e);

    if (rc != OK) return rc;
    tokenizer_decode(j->t, j->ids.p, j->ids.n, j->plain, &j->line);
    return print_line(j, e);
}

/* Without --jsonl the whole input is one text, or one list of ids. */
static int convert_file(struct job *j, struct err *e)
{
    struct buf text = { 0 };
    int rc = cli_read(&text, j->file, MAX_INPUT, e);

    if (rc == OK)
        rc = j->decode ? decode_text(j, buf_str(&text), e) : tokenize_text(j, buf_str(&text), e);
    buf_release(&text);
    return rc;
}

static int convert_lines(struct job *j, struct err *e)
{
    FILE *in = j->file ? fopen(j->file, "rb") : stdin;
    int rc;

    if (!in) return err_set(e, E_IO, "cannot read %s: %s", j->file, strerror(errno));
    rc = encode_lines(j, in, e);
    if (j->file) fclose(in);
    return rc;
}

static int run_job(struct job *j, struct err *e)
{
    int rc;

    if ((rc = cmd_model(&j->model, e)) != OK) return rc;
    if ((rc = guard_join(&j->guard, e)) != OK) return rc;
    rc = tokenizer_open(&j->t, j->model, e);
    guard_release(&j->guard);
    if (rc != OK) return rc;
    if ((rc = j->jsonl ? convert_lines(j, e) : convert_file(j, e)) != OK) return rc;
    return fflush(stdout) == 0 ? OK
                               : err_set(e, E_IO, "cannot write to stdout: %s", strerror(errno));
}

int cmd_tokenize(int argc, char **argv)
{
    struct job j = { .model = NULL };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "model with the tokenizer (the one that ships with tern)" },
        GUARD_KEY_ARGS(&j.guard),
        { "--file", "-f", ARG_STR, &j.file, "F", "read a file instead of stdin" },
        { "--special", NULL, ARG_FLAG, &j.special, NULL,
          "add BOS and EOS as the model's tokenizer does" },
        { "--plain", NULL, ARG_FLAG, &j.plain, NULL,
          "treat special tokens in the text as text; with --decode: leave them out" },
        { "--jsonl", NULL, ARG_FLAG, &j.jsonl, NULL,
          "one JSON string per line in, one array per line out" },
        { "--decode", "-d", ARG_FLAG, &j.decode, NULL, "ids in, text out" },
        { NULL, NULL, ARG_FLAG, NULL, NULL, NULL }
    };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, NULL, 0, &n_pos, &helped, &e);
    if (rc == OK && !helped && j.jsonl && j.decode)
        rc = err_set(&e, E_INVALID, "--jsonl and --decode exclude each other");
    if (rc != OK) return cmd_usage("tokenize", &e);
    if (helped) return EXIT_OK;
    rc = cmd_need_model(&j.model, &e);
    if (rc == OK) rc = run_job(&j, &e);
    tokenizer_close(j.t);
    buf_release(&j.line);
    ids_release(&j.ids);
    return cmd_result(rc, &e);
}
