/* chatform.c - writers for the chat forms, and the encoding that keeps user text from becoming
 * special tokens.
 *
 * A conversation is written as one text, with marks where special tokens are. It is encoded as a
 * whole, because that gives the tokens of training; if the result has other special tokens than the
 * marks, a message contained the name of one, and the text is encoded piece by piece instead. */
#include "pool/chatform.h"

#include "base/mem.h"

#include <stdio.h>

/* A special token in the text of a conversation. */
struct mark {
    size_t at, n; /* the bytes of its name */
    int32_t id;
};

/* A conversation being written as one text. */
struct conversation {
    const struct tokenizer *t;
    struct str tmpl; /* the model's template, for details of its form */
    const struct chat_msg *msgs;
    size_t n_msgs;
    struct str system; /* for forms that write it into the first user message */
    struct buf text;
    struct mark *marks;
    size_t n_marks, cap_marks;
    bool failed; /* no memory for a mark */
};

static void put_text(struct conversation *k, const char *s) { buf_puts(&k->text, s); }

/* Appends a special token; plain text if the vocabulary has none of that name. */
static void put_special(struct conversation *k, struct str name)
{
    int32_t id = tokenizer_find(k->t, name);

    if (id >= 0 && mem_ensure(k->marks, k->cap_marks, k->n_marks + 1))
        k->marks[k->n_marks++] = (struct mark){ k->text.n, name.n, id };
    else if (id >= 0) k->failed = true;
    buf_put_str(&k->text, name);
}

static void put_token(struct conversation *k, int32_t id)
{
    if (id >= 0) put_special(k, tokenizer_piece(k->t, id));
}

static void put_bos(struct conversation *k) { put_token(k, tokenizer_bos(k->t)); }

/* Only where the tokenizer adds BOS by itself. */
static void put_bos_if_usual(struct conversation *k)
{
    if (tokenizer_adds_bos(k->t)) put_bos(k);
}

static bool mentions(struct str text, const char *what) { return str_find(text, str_c(what)) >= 0; }

static bool is_user(const struct chat_msg *m) { return str_is(m->role, "user"); }
static bool is_system(const struct chat_msg *m) { return str_is(m->role, "system"); }

/* Removes the system message from the front, for forms that have no turn for it. */
static void split_system(struct conversation *k)
{
    if (k->n_msgs == 0 || !is_system(&k->msgs[0])) return;
    k->system = k->msgs[0].content;
    k->msgs++;
    k->n_msgs--;
}

/* Base models: a dialogue in plain text. */
static void write_plain(struct conversation *k)
{
    put_bos_if_usual(k);
    for (size_t i = 0; i < k->n_msgs; i++) {
        const struct chat_msg *m = &k->msgs[i];
        if (!is_system(m)) put_text(k, is_user(m) ? "User: " : "Assistant: ");
        buf_put_str(&k->text, m->content);
        put_text(k, is_system(m) ? "\n\n" : "\n");
    }
    put_text(k, "Assistant:");
}

/* <|role|>\n content <end> \n */
static void write_roles(struct conversation *k, struct str end)
{
    if (mentions(k->tmpl, "bos_token")) put_bos(k);
    else put_bos_if_usual(k);
    for (size_t i = 0; i <= k->n_msgs; i++) {
        char name[32];
        struct str role = i < k->n_msgs ? k->msgs[i].role : STR("assistant");
        snprintf(name, sizeof name, "<|%.*s|>", STR_ARG(role));
        put_special(k, str_c(name));
        put_text(k, "\n");
        if (i == k->n_msgs) break;
        buf_put_str(&k->text, k->msgs[i].content);
        put_special(k, end);
        put_text(k, "\n");
    }
}

static void write_zephyr(struct conversation *k)
{
    int32_t eos = tokenizer_eos(k->t);
    write_roles(k, eos >= 0 ? tokenizer_piece(k->t, eos) : STR("</s>"));
}

/* The system message a ChatML template puts in when there is none: a literal in its text. */
static struct str default_system(struct str tmpl)
{
    static const char *const opens[] = { "<|im_start|>system\\n", "<|im_start|>system\n" };

    for (int i = 0; i < 2; i++) {
        struct str rest = tmpl, open = str_c(opens[i]);
        for (ptrdiff_t at; (at = str_find(rest, open)) >= 0;) {
            ptrdiff_t end, n = 0;
            rest = str_skip(rest, (size_t)at + open.n);
            end = str_find(rest, STR("<|im_end|>"));
            while (n < end && !strchr("'\"{}\\", rest.p[n])) n++;
            if (end > 0 && n == end) return str_take(rest, (size_t)end);
        }
    }
    return STR("");
}

/* <|im_start|>role\n content <|im_end|>\n */
static void write_chatml(struct conversation *k)
{
    struct str system = is_system(&k->msgs[0]) ? STR("") : default_system(k->tmpl);

    put_bos_if_usual(k);
    if (system.n > 0) {
        put_special(k, STR("<|im_start|>"));
        put_text(k, "system\n");
        buf_put_str(&k->text, system);
        put_special(k, STR("<|im_end|>"));
        put_text(k, "\n");
    }
    for (size_t i = 0; i < k->n_msgs; i++) {
        put_special(k, STR("<|im_start|>"));
        buf_put_str(&k->text, k->msgs[i].role);
        put_text(k, "\n");
        buf_put_str(&k->text, k->msgs[i].content);
        put_special(k, STR("<|im_end|>"));
        put_text(k, "\n");
    }
    put_special(k, STR("<|im_start|>"));
    put_text(k, "assistant\n");
}

/* <|start_header_id|>role<|end_header_id|>\n\n content <|eot_id|> */
static void write_llama3(struct conversation *k)
{
    put_bos(k);
    for (size_t i = 0; i <= k->n_msgs; i++) {
        put_special(k, STR("<|start_header_id|>"));
        buf_put_str(&k->text, i < k->n_msgs ? k->msgs[i].role : STR("assistant"));
        put_special(k, STR("<|end_header_id|>"));
        put_text(k, "\n\n");
        if (i == k->n_msgs) break;
        buf_put_str(&k->text, str_trim(k->msgs[i].content));
        put_special(k, STR("<|eot_id|>"));
    }
}

/* The assistant is called "model"; the system message is part of the first user message. */
static void write_gemma(struct conversation *k)
{
    put_bos(k);
    split_system(k);
    for (size_t i = 0; i < k->n_msgs; i++) {
        put_special(k, STR("<start_of_turn>"));
        put_text(k, is_user(&k->msgs[i]) ? "user\n" : "model\n");
        if (i == 0 && k->system.n) buf_put_str(&k->text, str_trim(k->system)), put_text(k, "\n\n");
        buf_put_str(&k->text, str_trim(k->msgs[i].content));
        put_special(k, STR("<end_of_turn>"));
        put_text(k, "\n");
    }
    put_special(k, STR("<start_of_turn>"));
    put_text(k, "model\n");
}

/* BOS [INST] <<SYS>> system <</SYS>> user [/INST] answer EOS, one BOS per turn. */
static void write_llama2(struct conversation *k)
{
    split_system(k);
    for (size_t i = 0; i < k->n_msgs; i++) {
        struct str content = str_trim(k->msgs[i].content);
        if (!is_user(&k->msgs[i])) {
            put_text(k, " ");
            buf_put_str(&k->text, content);
            put_text(k, " ");
            put_token(k, tokenizer_eos(k->t));
            continue;
        }
        put_bos(k);
        put_text(k, "[INST] ");
        if (i == 0 && k->system.n) {
            put_text(k, "<<SYS>>\n");
            buf_put_str(&k->text, k->system);
            put_text(k, "\n<</SYS>>\n\n");
        }
        buf_put_str(&k->text, content);
        put_text(k, " [/INST]");
    }
}

/* Versions differ in the spaces; the system message is part of the last user message. */
static void write_mistral(struct conversation *k)
{
    bool after = k->tmpl.n == 0 || mentions(k->tmpl, "[INST] "),
         before = mentions(k->tmpl, " [/INST]");

    put_bos(k);
    split_system(k);
    for (size_t i = 0; i < k->n_msgs; i++) {
        if (!is_user(&k->msgs[i])) {
            if (after) put_text(k, " ");
            buf_put_str(&k->text, k->msgs[i].content);
            put_token(k, tokenizer_eos(k->t));
            continue;
        }
        put_special(k, STR("[INST]"));
        if (after) put_text(k, " ");
        if (i + 1 == k->n_msgs && k->system.n)
            buf_put_str(&k->text, k->system), put_text(k, "\n\n");
        buf_put_str(&k->text, k->msgs[i].content);
        if (before) put_text(k, " ");
        put_special(k, STR("[/INST]"));
    }
}

/* Without a template, the names of special tokens show the form. */
static enum chat_form form_of_tokens(const struct tokenizer *t)
{
    if (tokenizer_find(t, STR("<|im_start|>")) >= 0) return CHAT_CHATML;
    if (tokenizer_find(t, STR("<|start_header_id|>")) >= 0) return CHAT_LLAMA3;
    if (tokenizer_find(t, STR("<start_of_turn>")) >= 0) return CHAT_GEMMA;
    return CHAT_PLAIN;
}

static int write_conversation(struct conversation *k, enum chat_form f, struct err *e)
{
    if (k->n_msgs == 0) return err_set(e, E_INVALID, "a conversation needs at least one message");
    for (size_t i = 0; i < k->n_msgs; i++) {
        struct str role = k->msgs[i].role;
        if (!is_user(&k->msgs[i]) && !is_system(&k->msgs[i]) && !str_is(role, "assistant"))
            return err_set(e, E_INVALID,
                           "message %zu has the role '%.*s': it must be system, user or assistant",
                           i, STR_ARG(str_take(role, 40)));
    }
    switch (f == CHAT_NONE ? form_of_tokens(k->t) : f) {
    case CHAT_NONE:
    case CHAT_PLAIN: write_plain(k); break;
    case CHAT_ROLES: write_roles(k, STR("<|end|>")); break;
    case CHAT_ZEPHYR: write_zephyr(k); break;
    case CHAT_CHATML: write_chatml(k); break;
    case CHAT_LLAMA2: write_llama2(k); break;
    case CHAT_LLAMA3: write_llama3(k); break;
    case CHAT_MISTRAL: write_mistral(k); break;
    case CHAT_GEMMA: write_gemma(k); break;
    }
    if (k->failed) return err_nomem(e, "the special tokens of a conversation");
    return buf_check(&k->text, e);
}

static void release_conversation(struct conversation *k)
{
    buf_release(&k->text);
    mem_free(k->marks);
}

static bool is_mark(const struct conversation *k, int32_t id)
{
    for (size_t i = 0; i < k->n_marks; i++)
        if (k->marks[i].id == id) return true;
    return false;
}

/* Are the special tokens among ids exactly those that the form wrote? */
static bool has_only_marks(const struct conversation *k, const int32_t *ids, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        if (!tokenizer_is_special(k->t, ids[i]) && !is_mark(k, ids[i])) continue;
        if (at == k->n_marks || k->marks[at].id != ids[i]) return false;
        at++;
    }
    return at == k->n_marks;
}

/* Encodes piece by piece: the form's special tokens as ids, everything between as plain text. */
static int encode_pieces(const struct conversation *k, struct ids *out, struct err *e)
{
    struct str text = buf_str(&k->text);
    size_t at = 0;
    int rc;

    for (size_t i = 0; i <= k->n_marks; i++) {
        size_t end = i < k->n_marks ? k->marks[i].at : text.n;
        if (end > at) {
            rc = tokenizer_encode(k->t, str_of(text.p + at, end - at), ENCODE_PLAIN, out, e);
            if (rc != OK) return rc;
        }
        if (i == k->n_marks) break;
        ids_push(out, k->marks[i].id);
        at = end + k->marks[i].n;
    }
    return OK;
}

/* Encoded as one text the tokens are those of training. That is wrong only if a message contains
 * the name of a special token. */
static int encode_conversation(const struct conversation *k, struct ids *out, struct err *e)
{
    size_t before = out->n;
    int rc = tokenizer_encode(k->t, buf_str(&k->text), 0, out, e);

    if (rc == OK && !has_only_marks(k, out->p + before, out->n - before)) {
        out->n = before;
        rc = encode_pieces(k, out, e);
    }
    return rc == OK ? ids_check(out, e) : rc;
}

int chatform_write(enum chat_form f, const struct tokenizer *t, const struct chat_msg *msgs,
                   size_t n, struct buf *text, struct ids *ids, struct err *e)
{
    struct conversation k = {
        .t = t, .tmpl = tokenizer_chat_template(t), .msgs = msgs, .n_msgs = n
    };
    int rc = write_conversation(&k, f, e);

    if (rc == OK && ids) rc = encode_conversation(&k, ids, e);
    if (rc == OK && text) {
        buf_put_str(text, buf_str(&k.text));
        rc = buf_check(text, e);
    }
    release_conversation(&k);
    return rc;
}

/* Typical strings of the families' templates, the most specific first. */
static enum chat_form form_of_template(struct str tmpl)
{
    if (mentions(tmpl, "<|im_start|>")) return CHAT_CHATML;
    if (mentions(tmpl, "<|start_header_id|>")) return CHAT_LLAMA3;
    if (mentions(tmpl, "<start_of_turn>")) return CHAT_GEMMA;
    if (mentions(tmpl, "<<SYS>>")) return CHAT_LLAMA2;
    if (mentions(tmpl, "[INST]")) return CHAT_MISTRAL;
    if (mentions(tmpl, "<|end|>") && (mentions(tmpl, "<|user|>") || mentions(tmpl, "'<|' +")))
        return CHAT_ROLES;
    if (mentions(tmpl, "<|user|>") && (mentions(tmpl, "eos_token") || mentions(tmpl, "</s>")))
        return CHAT_ZEPHYR;
    return CHAT_PLAIN;
}

enum chat_form chatform_of(const struct tokenizer *t)
{
    struct str tmpl = tokenizer_chat_template(t);
    return tmpl.n > 0 ? form_of_template(tmpl) : CHAT_NONE;
}

const char *chatform_name(enum chat_form f)
{
    static const char *const names[] = { "none",   "plain",  "roles",   "zephyr", "chatml",
                                         "llama2", "llama3", "mistral", "gemma" };
    return names[f];
}

struct str chatform_stop(enum chat_form f) { return f <= CHAT_PLAIN ? STR("\nUser:") : STR(""); }

bool chatform_system_first(enum chat_form f)
{
    return f == CHAT_LLAMA2 || f == CHAT_MISTRAL || f == CHAT_GEMMA;
}
