/* promptdiff.c - see promptdiff.h. */
#include "api/promptdiff.h"

#include "base/buf.h"
#include "base/log.h"
#include "token/tokenizer.h"

enum { SHOWN_TOKENS = 12 }; /* from the first difference on */

/* The client of this key, or the one that was not used for longest. */
static struct promptdiff_client *find_client(struct promptdiff *d, uint64_t key)
{
    struct promptdiff_client *oldest = &d->clients[0];

    for (int i = 0; i < PROMPTDIFF_CLIENTS; i++) {
        if (d->clients[i].key == key) return &d->clients[i];
        if (d->clients[i].used < oldest->used) oldest = &d->clients[i];
    }
    oldest->key = key;
    oldest->ids.n = 0;
    return oldest;
}

static void put_text(struct buf *out, const struct tokenizer *t, const struct ids *v, size_t at)
{
    size_t n = v->n - at < SHOWN_TOKENS ? v->n - at : SHOWN_TOKENS;

    if (t) tokenizer_decode(t, v->p + at, n, false, out);
}

static void log_difference(const struct ids *old, const struct ids *now, size_t at,
                           const struct tokenizer *t, const char *label)
{
    struct buf a = { 0 }, b = { 0 };
    struct log_event ev;

    put_text(&a, t, old, at);
    put_text(&b, t, now, at);
    log_begin(&ev, LOG_DEBUG, "prompt compared with the client's last one");
    log_str(&ev, "id", str_c(label));
    log_int(&ev, "tokens", (int64_t)now->n);
    log_int(&ev, "last_tokens", (int64_t)old->n);
    log_int(&ev, "equal_tokens", (int64_t)at);
    if (at < old->n && at < now->n) {
        log_str(&ev, "was", buf_str(&a));
        log_str(&ev, "is", buf_str(&b));
    }
    log_end(&ev);
    buf_release(&a);
    buf_release(&b);
}

void promptdiff_note(struct promptdiff *d, uint64_t key, const struct ids *prompt,
                     const struct tokenizer *t, const char *label)
{
    struct promptdiff_client *c = find_client(d, key);
    size_t at = 0;

    while (at < c->ids.n && at < prompt->n && c->ids.p[at] == prompt->p[at]) at++;
    if (c->ids.n) log_difference(&c->ids, prompt, at, t, label);
    c->used = ++d->n_used;
    c->ids.n = 0;
    ids_add(&c->ids, prompt->p, prompt->n);
    if (c->ids.failed) ids_release(&c->ids); /* no memory: the next one is compared with nothing */
}

void promptdiff_release(struct promptdiff *d)
{
    for (int i = 0; i < PROMPTDIFF_CLIENTS; i++) ids_release(&d->clients[i].ids);
}
