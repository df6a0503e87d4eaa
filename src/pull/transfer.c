#include "pull/transfer_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <ctype.h>

void transfer_escape(struct buf *out, struct str name, bool slashes)
{
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        if (isalnum(c) || (c && strchr("-._~", c)) || (c == '/' && !slashes))
            buf_putc(out, (char)c);
        else buf_printf(out, "%%%02X", c);
    }
}

/* ---- open and close ---- */

static int add_item(struct transfer *t, const struct hub_file *f, const char *base)
{
    struct item *x = &t->items[t->n_items];
    struct buf url = { 0 };

    for (int i = 0; i < t->n_items; i++)
        if (strcmp(t->items[i].f->sum, f->sum) == 0) return OK; /* the same contents twice */
    *x = (struct item){ .f = f, .lock = -1, .part = { .fd = -1, .rec = -1 } };
    buf_puts(&url, base);
    transfer_escape(&url, str_c(f->name), false);
    buf_cstr(&url);
    x->url = url.p;
    t->n_items++;
    t->total += f->bytes;
    return buf_check(&url, t->e);
}

static int open_transfer(struct transfer *t, const struct hub_files *files, const char *base)
{
    int rc = OK;

    t->n_lanes = t->s->opt->connections;
    if (t->n_lanes < 1) t->n_lanes = 1;
    if (t->n_lanes > LANES_MOST) t->n_lanes = LANES_MOST;
    for (int i = 0; i < t->n_lanes; i++) t->lanes[i].t = t;
    t->items = mem_array((size_t)files->n + 1, sizeof *t->items);
    if (!t->items || !(t->multi = curl_multi_init())) return err_nomem(t->e, "the downloads");
    for (int i = 0; i < files->n && rc == OK; i++)
        if (files->at[i].chosen && !store_has_blob(t->store, &files->at[i]))
            rc = add_item(t, &files->at[i], base);
    return rc;
}

static void close_transfer(struct transfer *t)
{
    for (int i = 0; i < t->n_lanes; i++) {
        lane_stop(&t->lanes[i]);
        curl_easy_cleanup(t->lanes[i].easy);
    }
    curl_multi_cleanup(t->multi);
    for (int i = 0; i < t->n_items; i++) item_release(&t->items[i]);
    mem_free(t->items);
}

/* ---- the loop ---- */

static void tell_progress(struct transfer *t, bool now)
{
    const struct pull_opt *o = t->s->opt;
    struct pull_event ev = { PULL_PROGRESS, .total = t->total, .n_files = t->n_items };

    if (!o->tell || (!now && t->told_ns && clock_ms_since(t->told_ns) < 100)) return;
    t->told_ns = clock_ns();
    for (int i = 0; i < t->n_items; i++) ev.done += item_have(&t->items[i]);
    if (t->grew) {
        ev.file = t->grew->f->name;
        ev.sum = t->grew->f->sum;
        ev.file_done = item_have(t->grew);
        ev.file_total = t->grew->f->bytes;
    }
    o->tell(o->arg, &ev);
}

/* The next range of a file that is under way, else of one that begins now. *x NULL: there is none. */
static int find_work(struct transfer *t, struct item **found, int *range)
{
    uint64_t now = clock_ns();
    bool look = now - t->polled_ns > 200 * 1000000u; /* at locks of others */
    int rc = OK;

    *found = NULL;
    for (int i = 0; i < t->n_items && rc == OK; i++) {
        struct item *x = &t->items[i];

        if (x->state == ITEM_WAITS && (!x->told_wait || look)) {
            if (x->told_wait) t->polled_ns = now;
            rc = item_begin(t, x);
        }
        if (rc != OK || x->state != ITEM_RUNS || x->retry_ns > now) continue;
        if ((*range = part_next(&x->part)) < 0) continue;
        *found = x;
        break;
    }
    return rc;
}

static int fill_lanes(struct transfer *t)
{
    int rc = OK;

    for (int i = 0; i < t->n_lanes && rc == OK; i++) {
        struct item *x;
        int range;

        if (t->lanes[i].item) continue;
        if ((rc = find_work(t, &x, &range)) != OK || !x) return rc;
        rc = lane_start(&t->lanes[i], x, range);
    }
    return rc;
}

static int read_ends(struct transfer *t)
{
    CURLMsg *m;
    int left, rc = OK;

    while (rc == OK && (m = curl_multi_info_read(t->multi, &left))) {
        struct lane *l = NULL;
        CURLcode code = m->data.result;

        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&l);
        if (l && l->item) rc = lane_end(l, code);
    }
    return rc;
}

/* Hashes and finishes. *more: there is work besides waiting for the network. */
static int advance_items(struct transfer *t, bool *more, bool *finished)
{
    int rc = OK;

    *more = false;
    *finished = true;
    for (int i = 0; i < t->n_items && rc == OK; i++) {
        struct item *x = &t->items[i];

        if (x->state == ITEM_RUNS) rc = item_hash(t, x, more);
        if (rc == OK && x->state == ITEM_RUNS && item_is_hashed(x) && !x->n_lanes)
            rc = item_finish(t, x);
        *finished &= x->state == ITEM_FINISHED;
    }
    return rc;
}

static int run_loop(struct transfer *t)
{
    bool more, finished = false;
    int running, rc = OK;

    while (rc == OK && !finished) {
        if (session_is_stopped(t->s)) return err_set(t->e, E_CANCELLED, "interrupted");
        if ((rc = fill_lanes(t)) != OK) break;
        if (curl_multi_perform(t->multi, &running) != CURLM_OK)
            return err_set(t->e, E_IO, "libcurl cannot go on");
        if ((rc = read_ends(t)) != OK) break;
        if ((rc = advance_items(t, &more, &finished)) != OK) break;
        tell_progress(t, finished);
        if (!more && !finished) curl_multi_poll(t->multi, NULL, 0, 50, NULL);
    }
    return rc;
}

/* Bytes of earlier downloads are on the disk already. */
static uint64_t bytes_left(const struct transfer *t)
{
    uint64_t left = 0;

    for (int i = 0; i < t->n_items; i++) {
        uint64_t here = store_part_bytes(t->store, t->items[i].f->sum);
        if (here < t->items[i].f->bytes) left += t->items[i].f->bytes - here;
    }
    return left;
}

int transfer_run(struct session *s, const struct store *store, const struct hub_files *files,
                 const char *base, uint64_t *downloaded, struct err *e)
{
    struct transfer *t = mem_new(struct transfer);
    int rc;

    if (!t) return err_nomem(e, "the downloads");
    *t = (struct transfer){ .s = s, .store = store, .e = e };
    rc = open_transfer(t, files, base);
    if (rc == OK) rc = store_check_space(store, bytes_left(t), e);
    if (rc == OK) rc = run_loop(t);
    *downloaded = t->downloaded;
    close_transfer(t);
    mem_free(t);
    return rc;
}
