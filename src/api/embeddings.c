/* embeddings.c - POST /v1/embeddings: vectors as numbers or base64, optionally shortened.
 *
 * Vectors have length 1 as the engine computes them, unless the model says otherwise. */
#include "api/call.h"

#include "api/choice.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "pool/pool.h"

#include <math.h>

/* Fewer dimensions than the model has are cut off; more do not exist. */
static int check_dimensions(struct call *c, struct err *e)
{
    struct engine_info info;

    engine_info(c->model->engine, &info);
    c->n_vec = info.n_vec;
    if (c->p.dimensions <= c->n_vec) return OK;
    call_blame(c, "dimensions");
    return err_set(e, E_INVALID, "dimensions is %d, but the model's embeddings have only %d",
                   c->p.dimensions, c->n_vec);
}

int embeddings_prepare(struct call *c, struct err *e)
{
    static const struct inputs_kind kind = { "embed", "input", BODY_EMBED, false,
                                             check_dimensions };

    return inputs_prepare(c, &kind, e);
}

void api_embeddings(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { embeddings_prepare, call_submit_inputs };

    call_begin(a, q, who, "/v1/embeddings", &job);
}

/* ---- the answer ---- */

/* Scales the first n numbers to length 1: a shortened (Matryoshka) embedding. */
static void renormalize(float *v, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += (double)v[i] * v[i];
    sum = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int i = 0; i < n; i++) v[i] = (float)(v[i] * sum);
}

/* The bytes of the F32 numbers, in the byte order of this machine: little-endian. */
static void append_base64(struct buf *out, const float *v, int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const void *)v;
    size_t left = (size_t)n * sizeof *v;

    for (; left >= 3; left -= 3, p += 3) {
        buf_putc(out, digits[p[0] >> 2]);
        buf_putc(out, digits[(p[0] & 3) << 4 | p[1] >> 4]);
        buf_putc(out, digits[(p[1] & 15) << 2 | p[2] >> 6]);
        buf_putc(out, digits[p[2] & 63]);
    }
    if (!left) return;
    buf_putc(out, digits[p[0] >> 2]);
    buf_putc(out, digits[(p[0] & 3) << 4 | (left > 1 ? p[1] >> 4 : 0)]);
    buf_putc(out, left > 1 ? digits[(p[1] & 15) << 2] : '=');
    buf_putc(out, '=');
}

/* 9 significant digits represent every float. */
static void append_vector(struct call *c, struct choice *ch, struct buf *out)
{
    int n = c->p.dimensions ? c->p.dimensions : c->n_vec;

    if (n < c->n_vec) renormalize(ch->vec, n);
    if (c->p.base64) {
        buf_putc(out, '"');
        append_base64(out, ch->vec, n);
        buf_putc(out, '"');
        return;
    }
    buf_putc(out, '[');
    for (int i = 0; i < n; i++) buf_printf(out, "%s%.9g", i ? "," : "", (double)ch->vec[i]);
    buf_putc(out, ']');
}

void embeddings_append(struct call *c, int i, struct buf *out)
{
    append_vector(c, c->choices[i], out);
}

int embeddings_write(struct call *c, struct err *e)
{
    int tokens = 0;

    buf_puts(&c->out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < c->n_choices; i++) {
        buf_printf(&c->out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "",
                   i);
        append_vector(c, c->choices[i], &c->out);
        buf_putc(&c->out, '}');
        if (call_is_stopped(c)) break; /* nobody waits for the rest */
    }
    for (int i = 0; i < c->n_prompts; i++) tokens += c->prompt_tokens[i];
    buf_puts(&c->out, "],\"model\":");
    jsonw_str(&(struct jsonw){ .out = &c->out }, str_c(c->model_id));
    buf_printf(&c->out, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}", tokens, tokens);
    return buf_check(&c->out, e);
}
