/* lane.c - one connection: a request for a range, its reply into the part, and what follows an end. */
#include "pull/transfer_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    hub_head_line(&((struct lane *)arg)->head, str_of(p, size * n));
    return size * n;
}

/* The file comes from its beginning, in its only range. */
static int begin_again(struct lane *l)
{
    if (item_restart(l->t, l->item, l->item->f->bytes) != OK) {
        l->err = *l->t->e;
        return l->err.code;
    }
    l->range = 0;
    l->item->part.taken[0] = true;
    return OK;
}

/* Is the body what was asked for? A server without ranges sends all of the file from its beginning. */
static int check_reply(struct lane *l)
{
    struct item *x = l->item;
    const struct hub_head *h = &l->head;

    if (h->status == 206 && (h->first != (int64_t)part_offset(&x->part, l->range) ||
                             (h->all >= 0 && h->all != (int64_t)x->f->bytes)))
        return err_set(&l->err, E_FORMAT,
                       "%s: asked for bytes from %llu of %llu, and got a range from %lld of %lld",
                       x->f->name, (unsigned long long)part_offset(&x->part, l->range),
                       (unsigned long long)x->f->bytes, (long long)h->first, (long long)h->all);
    if (h->status == 200 && h->length >= 0 && h->length != (int64_t)x->f->bytes)
        return err_set(&l->err, E_FORMAT, "%s: has %lld bytes, and the hub's list says %llu",
                       x->f->name, (long long)h->length, (unsigned long long)x->f->bytes);
    if (h->status == 200 && x->part.n > 1) {
        l->no_ranges = true;
        return E_INVALID;
    }
    if (h->status == 200 && x->part.done[l->range] > 0) return begin_again(l);
    return OK;
}

/* Bytes that were never here before are progress; those that a server without ranges sends again are
 * none. */
static void note_growth(struct lane *l)
{
    struct item *x = l->item;

    if (l->head.status == 200 && x->part.done[0] <= x->most) return;
    if (l->head.status == 200) x->most = x->part.done[0];
    x->n_fails = 0;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct lane *l = arg;
    struct item *x = l->item;

    if (l->head.status != 200 && l->head.status != 206) return size * n; /* the text of an error */
    if (!l->checked && check_reply(l) != OK) return 0;
    l->checked = true;
    if (part_write(&x->part, l->range, p, size * n, &l->err) != OK) return 0;
    note_growth(l);
    l->t->downloaded += size * n;
    l->t->grew = x;
    return size * n;
}

/* ---- start and stop ---- */

static int send_request(struct lane *l)
{
    struct item *x = l->item;
    const char *url = x->target ? x->target : x->url;
    char range[64];
    int rc = session_prepare(l->t->s, l->easy, url, l->t->e);

    if (rc != OK) return rc;
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)part_offset(&x->part, l->range),
             (unsigned long long)((uint64_t)l->range * x->part.chunk +
                                  part_range_bytes(&x->part, l->range) - 1));
    hub_head_init(&l->head);
    l->checked = l->no_ranges = false;
    l->err = (struct err){ 0 };
    l->text[0] = 0;
    curl_easy_setopt(l->easy, CURLOPT_RANGE, range);
    curl_easy_setopt(l->easy, CURLOPT_ERRORBUFFER, l->text);
    curl_easy_setopt(l->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(l->easy, CURLOPT_HEADERDATA, l);
    curl_easy_setopt(l->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(l->easy, CURLOPT_WRITEDATA, l);
    curl_easy_setopt(l->easy, CURLOPT_PRIVATE, l);
    if (curl_multi_add_handle(l->t->multi, l->easy) != CURLM_OK)
        return err_nomem(l->t->e, "a connection");
    return OK;
}

int lane_start(struct lane *l, struct item *x, int range)
{
    if (!l->easy && !(l->easy = curl_easy_init())) return err_nomem(l->t->e, "a connection");
    l->item = x;
    l->range = range;
    l->n_redirects = 0;
    x->part.taken[range] = true;
    x->n_lanes++;
    return send_request(l);
}

void lane_stop(struct lane *l)
{
    if (!l->item) return;
    curl_multi_remove_handle(l->t->multi, l->easy);
    if (l->range < l->item->part.n) l->item->part.taken[l->range] = false;
    l->item->n_lanes--;
    l->item = NULL;
}

/* ---- ends ---- */

/* Asks for the range at another place. */
static int follow_redirect(struct lane *l)
{
    struct transfer *t = l->t;
    struct item *x = l->item;
    char *next = NULL;
    int rc;

    if (++l->n_redirects > REDIRECTS_MOST)
        return err_set(t->e, E_FORMAT, "%s: more than %d redirects", x->f->name, REDIRECTS_MOST);
    rc = session_redirect(t->s, x->target ? x->target : x->url, l->head.location, &next, t->e);
    if (rc == OK) {
        mem_free(x->target);
        if (!(x->target = mem_strdup(next))) rc = err_nomem(t->e, "a URL");
    }
    curl_free(next);
    curl_multi_remove_handle(t->multi, l->easy);
    return rc == OK ? send_request(l) : rc;
}

/* All connections of the file end, and it comes over one from its beginning. */
static int go_without_ranges(struct lane *l)
{
    struct transfer *t = l->t;
    struct item *x = l->item;

    for (int i = 0; i < t->n_lanes; i++)
        if (t->lanes[i].item == x) lane_stop(&t->lanes[i]);
    return item_restart(t, x, x->f->bytes);
}

/* The address of the redirect may have expired: the hub is asked again. */
static int try_later(struct lane *l, CURLcode rc)
{
    struct transfer *t = l->t;
    struct item *x = l->item;
    const char *why = rc == CURLE_OK ? "the server is busy"
                      : l->text[0]   ? l->text
                                     : curl_easy_strerror(rc);
    char note[400];
    int ms;

    if (x->retry_ns > clock_ns()) return lane_stop(l), OK; /* one failure of several connections */
    x->n_fails++;
    if (x->n_fails > t->s->opt->retries && rc == CURLE_OK)
        return session_fail(t->s, &l->head, x->f->name, t->e);
    if (x->n_fails > t->s->opt->retries)
        return session_fail_curl(t->s, rc, l->text, x->f->name, t->e);
    ms = session_delay(t->s, l->easy, x->n_fails);
    x->retry_ns = clock_ns() + (uint64_t)ms * 1000000u;
    mem_free(x->target);
    x->target = NULL;
    snprintf(note, sizeof note, "%.200s: %.120s; trying again in %d ms", x->f->name, why, ms);
    session_note(t->s, note);
    lane_stop(l);
    return OK;
}

/* A reply that is no success. At another host than the hub's it may be an expired address. */
static int end_refused(struct lane *l)
{
    int status = l->head.status;
    bool elsewhere = l->item->target && !session_is_endpoint(l->t->s, l->item->target);

    if (session_is_transient(CURLE_OK, status) ||
        (elsewhere && (status == 401 || status == 403 || status == 404 || status == 410)))
        return try_later(l, CURLE_OK);
    return session_fail(l->t->s, &l->head, l->item->f->name, l->t->e);
}

int lane_end(struct lane *l, CURLcode rc)
{
    struct item *x = l->item;
    int status = l->head.status;

    if (l->no_ranges) return go_without_ranges(l);
    if (l->err.code) return err_set(l->t->e, l->err.code, "%s", l->err.msg);
    if (rc == CURLE_OK && status >= 300 && status < 400 && l->head.location[0])
        return follow_redirect(l);
    if (rc == CURLE_OK && status != 200 && status != 206) return end_refused(l);
    if (rc == CURLE_OK && x->part.done[l->range] == part_range_bytes(&x->part, l->range))
        return lane_stop(l), OK;
    if (rc == CURLE_OK) rc = CURLE_PARTIAL_FILE;
    if (!session_is_transient(rc, status))
        return session_fail_curl(l->t->s, rc, l->text, x->f->name, l->t->e);
    return try_later(l, rc);
}
