/* rankform.c - the four forms of the question. */
#include "pool/rankform.h"

#include "pool/prompter.h"

static const char judge[] =
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".";

/* ---- pieces of a prompt ---- */

enum { PIECES = 16 };

/* A prompt as pieces: those of the form, in which special tokens are written by their names, and
 * those of the client. */
struct pieced {
    struct piece {
        struct str text;
        bool given; /* by the client */
    } all[PIECES];
    int n;
};

static int add(struct pieced *p, struct str text, bool given, struct err *e)
{
    if (text.n == 0) return OK;
    if (p->n == PIECES)
        return err_set(e, E_UNSUPPORTED, "the template rerank has more than %d places", PIECES / 2);
    p->all[p->n++] = (struct piece){ text, given };
    return OK;
}

/* Is a special token written in a text of the client? */
static int find_special(const struct tokenizer *t, struct str text, bool *found, struct err *e)
{
    struct ids ids = { 0 };
    int rc = tokenizer_encode(t, text, 0, &ids, e);

    for (size_t i = 0; i < ids.n && rc == OK; i++)
        *found = *found || tokenizer_is_special(t, ids.p[i]);
    ids_release(&ids);
    return rc;
}

/* As one text, as the model was trained. Only where a text of the client contains a special token are
 * the pieces encoded one by one: that token is plain text then. */
static int encode_pieces(const struct pieced *p, const struct tokenizer *t, struct ids *out,
                         struct err *e)
{
    struct buf text = { 0 };
    bool special = false;
    int rc = OK;

    for (int i = 0; i < p->n && rc == OK; i++) {
        buf_put_str(&text, p->all[i].text);
        if (p->all[i].given) rc = find_special(t, p->all[i].text, &special, e);
    }
    if (rc == OK) rc = buf_check(&text, e);
    if (rc == OK && !special) rc = tokenizer_encode(t, buf_str(&text), 0, out, e);
    for (int i = 0; i < p->n && rc == OK && special; i++)
        rc = tokenizer_encode(t, p->all[i].text, p->all[i].given ? ENCODE_PLAIN : 0, out, e);
    buf_release(&text);
    return rc == OK ? ids_check(out, e) : rc;
}

/* ---- a template with places ---- */

/* The first place of a template, and what goes there; *at: n if there is none. */
static struct str find_place(struct str tmpl, const struct rank_question *q, size_t *at,
                             size_t *bytes, bool *instructed)
{
    const struct {
        struct str name, value;
        bool instruction;
    } places[] = {
        { STR("{query}"), q->query, false },
        { STR("{document}"), q->document, false },
        { STR("{instruction}"), q->instruction.p ? q->instruction : STR(RANKFORM_INSTRUCTION),
          true },
        { q->instruction.p ? STR(RANKFORM_INSTRUCTION) : STR("{instruction}"),
          q->instruction.p ? q->instruction : STR(RANKFORM_INSTRUCTION), true },
    };
    struct str value = STR("");

    *at = tmpl.n;
    *bytes = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ptrdiff_t found = str_find(tmpl, places[i].name);
        if (found < 0 || (size_t)found >= *at) continue;
        *at = (size_t)found;
        *bytes = places[i].name.n;
        *instructed = *instructed || places[i].instruction;
        value = places[i].value;
    }
    return value;
}

static int write_template(struct str tmpl, const struct tokenizer *t, const struct rank_question *q,
                          struct ids *out, struct err *e)
{
    struct pieced p = { 0 };
    bool instructed = false;
    int rc = OK;

    while (tmpl.n && rc == OK) {
        size_t at, bytes;
        struct str value = find_place(tmpl, q, &at, &bytes, &instructed);
        if ((rc = add(&p, str_take(tmpl, at), false, e)) == OK) rc = add(&p, value, true, e);
        tmpl = str_skip(tmpl, at + bytes);
    }
    if (rc == OK && q->instruction.p && !instructed)
        return err_set(e, E_INVALID,
                       "instruction: the template rerank of the model has no place for one");
    return rc == OK ? encode_pieces(&p, t, out, e) : rc;
}

/* ---- the other forms ---- */

static int write_chatml(const struct tokenizer *t, const struct rank_question *q, struct ids *out,
                        struct err *e)
{
    bool thinks = tokenizer_find(t, STR("<think>")) >= 0;
    const struct piece all[] = {
        { STR("<|im_start|>system\n"), false },
        { str_c(judge), false },
        { STR("<|im_end|>\n<|im_start|>user\n<Instruct>: "), false },
        { q->instruction.p ? q->instruction : STR(RANKFORM_INSTRUCTION), true },
        { STR("\n<Query>: "), false },
        { q->query, true },
        { STR("\n<Document>: "), false },
        { q->document, true },
        { STR("<|im_end|>\n<|im_start|>assistant\n"), false },
        { thinks ? STR("<think>\n\n</think>\n\n") : STR(""), false },
    };
    struct pieced p = { 0 };
    int rc = OK;

    for (size_t i = 0; i < sizeof all / sizeof *all && rc == OK; i++)
        rc = add(&p, all[i].text, all[i].given, e);
    return rc == OK ? encode_pieces(&p, t, out, e) : rc;
}

static bool mentions(struct str tmpl, const char *one, const char *other)
{
    return str_find(tmpl, str_c(one)) >= 0 || str_find(tmpl, str_c(other)) >= 0;
}

/* Has the chat template messages for the two texts? */
static bool knows_roles(struct str tmpl)
{
    return mentions(tmpl, "'query'", "\"query\"") && mentions(tmpl, "'document'", "\"document\"");
}

static int make_prompt(const struct prompter *p, struct prompt_input *in, struct ids *out,
                       struct err *e)
{
    struct prompt_output made = { 0 };
    json_t *vars = json_pack("{s:b}", "enable_thinking", 0);
    int rc = vars ? OK : err_nomem(e, "the prompt of a document");

    in->vars = vars;
    if (rc == OK) rc = prompter_make(p, in, &made, e);
    if (rc == OK) ids_add(out, made.ids.p, made.ids.n);
    prompt_output_release(&made);
    json_decref(vars);
    return rc == OK ? ids_check(out, e) : rc;
}

/* The instruction is a system message, if the client has given one. */
static int write_roles(const struct prompter *p, const struct rank_question *q, struct ids *out,
                       struct err *e)
{
    json_t *list = json_pack("[{s:s, s:s%}, {s:s, s:s%}]", "role", "query", "content",
                             q->query.p ? q->query.p : "", q->query.n, "role", "document",
                             "content", q->document.p ? q->document.p : "", q->document.n);
    struct prompt_input in = { .messages = list };
    bool ok = list != NULL;
    int rc;

    if (ok && q->instruction.p)
        ok = json_array_insert_new(list, 0,
                                   json_pack("{s:s, s:s%}", "role", "system", "content",
                                             q->instruction.p, q->instruction.n)) == 0;
    rc = ok ? make_prompt(p, &in, out, e)
            : err_set(e, E_INVALID, "the query or the document is not valid UTF-8");
    json_decref(list);
    return rc;
}

static int write_messages(const struct prompter *p, const struct rank_question *q, struct ids *out,
                          struct err *e)
{
    struct buf text = { 0 };
    struct chat_msg msgs[2] = { { STR("system"), str_c(judge) }, { .role = STR("user") } };
    struct prompt_input in = { .msgs = msgs, .n_msgs = 2 };
    int rc;

    buf_puts(&text, "<Instruct>: ");
    buf_put_str(&text, q->instruction.p ? q->instruction : STR(RANKFORM_INSTRUCTION));
    buf_puts(&text, "\n<Query>: ");
    buf_put_str(&text, q->query);
    buf_puts(&text, "\n<Document>: ");
    buf_put_str(&text, q->document);
    msgs[1].content = buf_str(&text);
    rc = buf_check(&text, e);
    if (rc == OK) rc = make_prompt(p, &in, out, e);
    buf_release(&text);
    return rc;
}

int rankform_write(const struct prompter *p, const struct tokenizer *t,
                   const struct rank_question *q, struct ids *out, struct err *e)
{
    struct str tmpl = tokenizer_rank_template(t);

    if (tmpl.n) return write_template(tmpl, t, q, out, e);
    if (knows_roles(prompter_template(p, false))) return write_roles(p, q, out, e);
    if (tokenizer_find(t, STR("<|im_start|>")) >= 0 && tokenizer_find(t, STR("<|im_end|>")) >= 0)
        return write_chatml(t, q, out, e);
    return write_messages(p, q, out, e);
}
