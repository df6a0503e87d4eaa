#include "cli/answer.h"

#include "base/jsonw.h"
#include "base/mem.h"

void report_add(struct report *r, const tern_event *ev)
{
    buf_add(&r->text, ev->text, ev->n);
    if (ev->id < 0) return;
    if (r->n_ids == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 256;
        r->ids = mem_grow(r->ids, (size_t)r->cap * sizeof *r->ids);
    }
    r->ids[r->n_ids++] = ev->id;
}

void report_release(struct report *r)
{
    buf_release(&r->text);
    mem_free(r->ids);
}

const char *report_finish(tern_finish f)
{
    switch (f) {
    case TERN_FINISH_STOP: return "stop";
    case TERN_FINISH_LENGTH: return "length";
    case TERN_FINISH_CANCELLED: return "cancelled";
    default: return "none";
    }
}

static void number(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}

bool report_write(struct report *r, const struct gen *g, const tern_stats *s, tern_finish finish)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    bool ok;

    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(g->info.name));
    jsonw_key(&w, "text"), jsonw_str(&w, buf_str(&r->text));
    jsonw_key(&w, "ids"), jsonw_arr(&w);
    for (int i = 0; i < r->n_ids; i++) jsonw_int(&w, r->ids[i]);
    jsonw_end(&w);
    jsonw_key(&w, "finish"), jsonw_str(&w, str_c(report_finish(finish)));
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, s->prompt_tokens);
    jsonw_key(&w, "cached_tokens"), jsonw_int(&w, s->cached_tokens);
    jsonw_key(&w, "tokens"), jsonw_int(&w, s->tokens);
    number(&w, "load_ms", g->info.load_ms);
    number(&w, "prompt_ms", s->prompt_ms);
    number(&w, "decode_ms", s->decode_ms);
    number(&w, "first_token_ms", s->first_token_ms);
    jsonw_key(&w, "seed"), jsonw_int(&w, (int64_t)g->params.seed);
    jsonw_end(&w);
    buf_putc(&out, '\n');
    ok = gen_write(out.p, out.n);
    buf_release(&out);
    return ok;
}
