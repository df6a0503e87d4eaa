#include "cli/runanswer.h"

#include "base/jsonw.h"
#include "cli/cliio.h"

void runanswer_add(struct runanswer *a, const tern_event *ev)
{
    buf_add(&a->text, ev->text, ev->n);
    if (ev->id >= 0) ids_push(&a->ids, ev->id);
}

void runanswer_release(struct runanswer *a)
{
    buf_release(&a->text);
    ids_release(&a->ids);
}

/* The finish reasons of the JSON object. */
static const char *name_finish(tern_finish f)
{
    switch (f) {
    case TERN_FINISH_STOP: return "stop";
    case TERN_FINISH_LENGTH: return "length";
    case TERN_FINISH_CANCELLED: return "cancelled";
    default: return "none";
    }
}

/* Milliseconds. */
static void put_stat(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}

/* Field names are part of the interface. */
bool runanswer_write(const struct runanswer *a, const struct gen *g, const tern_stats *s,
                     tern_finish finish)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    bool ok;

    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(g->info.name));
    jsonw_key(&w, "text"), jsonw_str(&w, buf_str(&a->text));
    jsonw_key(&w, "ids"), jsonw_arr(&w);
    for (size_t i = 0; i < a->ids.n; i++) jsonw_int(&w, a->ids.p[i]);
    jsonw_end(&w);
    jsonw_key(&w, "finish"), jsonw_str(&w, str_c(name_finish(finish)));
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, s->prompt_tokens);
    jsonw_key(&w, "cached_tokens"), jsonw_int(&w, s->cached_tokens);
    jsonw_key(&w, "tokens"), jsonw_int(&w, s->tokens);
    put_stat(&w, "load_ms", g->info.load_ms);
    put_stat(&w, "prompt_ms", s->prompt_ms);
    put_stat(&w, "decode_ms", s->decode_ms);
    put_stat(&w, "first_token_ms", s->first_token_ms);
    jsonw_key(&w, "seed"), jsonw_int(&w, (int64_t)g->params.seed);
    jsonw_end(&w);
    buf_putc(&out, '\n');
    if (out.failed || a->text.failed || a->ids.failed) cli_nomem();
    ok = gen_write(out.p, out.n);
    buf_release(&out);
    return ok;
}
