/* tokens.c - POST /tokenize and POST /detokenize. Request threads do the work (prepare.c) and write
 * the answer; the text is limited, since a text is tokenized in one go. */
#include "api/call.h"

#include "base/jsonw.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "pool/pool.h"

/* Models without a tokenizer accept token ids only. */
static int find_tokenizer(struct call *c, const struct tokenizer **out, struct err *e)
{
    *out = engine_tokenizer(c->model->engine);
    if (*out) return OK;
    call_blame(c, "model");
    return err_set(e, E_INVALID, "the model %s has no tokenizer", c->model->id);
}

/* A string, or a list of bytes where the piece is not valid UTF-8 (part of a character). */
static void write_piece(struct jsonw *w, struct str bytes)
{
    if (utf8_bad(bytes) < 0) {
        jsonw_str(w, bytes);
        return;
    }
    jsonw_arr(w);
    for (size_t i = 0; i < bytes.n; i++) jsonw_int(w, (unsigned char)bytes.p[i]);
    jsonw_end(w);
}

/* With with_pieces every token is an object with its text. */
static void write_tokens(struct call *c, const struct tokenizer *t, const struct ids *ids)
{
    struct jsonw w = { .out = &c->out };

    if (c->p.with_pieces) pieces_init(&c->pieces, t);
    jsonw_obj(&w);
    jsonw_key(&w, "tokens"), jsonw_arr(&w);
    for (size_t i = 0; i < ids->n; i++) {
        if (!c->p.with_pieces) {
            jsonw_int(&w, ids->p[i]);
            continue;
        }
        jsonw_obj(&w);
        jsonw_key(&w, "id"), jsonw_int(&w, ids->p[i]);
        jsonw_key(&w, "piece"), write_piece(&w, pieces_of(&c->pieces, ids->p[i]));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_key(&w, "count"), jsonw_int(&w, (int64_t)ids->n);
    jsonw_end(&w);
}

static int prepare_tokenize(struct call *c, struct err *e)
{
    enum { TEXT_MAX = 1 << 20 }; /* bytes */
    const struct tokenizer *t;
    struct ids ids = { 0 };
    unsigned flags;
    int rc;

    if ((rc = call_read_body(c, BODY_TOKENIZE, e)) != OK) return rc;
    if ((rc = find_tokenizer(c, &t, e)) != OK) return rc;
    if (c->p.text.n > TEXT_MAX) {
        call_blame(c, "content");
        return err_set(e, E_INVALID, "content has %zu bytes, but at most %d are allowed",
                       c->p.text.n, TEXT_MAX);
    }
    flags = (c->p.add_special ? ENCODE_SPECIAL : 0) | (c->p.parse_special ? 0 : ENCODE_PLAIN);
    if ((rc = tokenizer_encode(t, c->p.text, flags, &ids, e)) == OK) rc = ids_check(&ids, e);
    if (rc == OK) write_tokens(c, t, &ids);
    if (rc == OK && c->pieces.failed) rc = err_nomem(e, "the texts of tokens");
    if (rc == OK) rc = buf_check(&c->out, e);
    ids_release(&ids);
    return rc;
}

/* call_job.then of both. */
static int send_answer(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

void api_tokenize(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_tokenize, send_answer };

    call_begin(a, q, who, "/tokenize", &job);
}

static int prepare_detokenize(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    const struct tokenizer *t;
    struct buf text = { 0 };
    int rc;

    if ((rc = call_read_body(c, BODY_DETOKENIZE, e)) != OK) return rc;
    if ((rc = find_tokenizer(c, &t, e)) != OK) return rc;
    for (size_t i = 0; i < c->p.n_tokens; i++) {
        if (c->p.tokens[i] < tokenizer_n(t)) continue;
        call_blame(c, "tokens[%zu]", i);
        return err_set(e, E_INVALID, "%s is %d, but the vocabulary has %d tokens", c->p.param,
                       c->p.tokens[i], tokenizer_n(t));
    }
    tokenizer_decode(t, c->p.tokens, c->p.n_tokens, false, &text);
    if ((rc = buf_check(&text, e)) == OK) {
        jsonw_obj(&w);
        jsonw_key(&w, "content"), jsonw_str(&w, buf_str(&text));
        jsonw_end(&w);
        rc = buf_check(&c->out, e);
    }
    buf_release(&text);
    return rc;
}

void api_detokenize(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_detokenize, send_answer };

    call_begin(a, q, who, "/detokenize", &job);
}
