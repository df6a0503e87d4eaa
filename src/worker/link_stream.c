/* link_stream.c - streams of a link: their table, credit, and sending on them. */
#include "worker/link_impl.h"

#include "base/mem.h"

struct link_stream *stream_find(struct link *l, uint64_t id)
{
    struct link_stream *s = l->slots[id % LINK_SLOTS];

    while (s && s->id != id) s = s->next;
    return s;
}

struct link_stream *stream_open(struct link *l, uint64_t id, void *user)
{
    struct link_stream *s = mem_new(struct link_stream);

    if (!s) return NULL;
    *s = (struct link_stream){ .link = l, .id = id, .user = user };
    s->credit_in = l->opt.window;
    s->credit_out = l->peer_window;
    s->next = l->slots[id % LINK_SLOTS];
    l->slots[id % LINK_SLOTS] = s;
    l->last_id = id;
    l->stats.streams++;
    if (++l->stats.open_streams > l->stats.most_streams)
        l->stats.most_streams = l->stats.open_streams;
    return s;
}

void stream_close(struct link_stream *s)
{
    struct link *l = s->link;
    struct link_stream **at = &l->slots[s->id % LINK_SLOTS];

    stream_unblock(s);
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    l->stats.open_streams--;
    mem_free(s);
}

static void stream_block(struct link_stream *s)
{
    struct link *l = s->link;

    if (s->blocked) return;
    s->blocked = true;
    s->prev_blocked = l->blocked_tail;
    s->next_blocked = NULL;
    if (l->blocked_tail) l->blocked_tail->next_blocked = s;
    else l->blocked = s;
    l->blocked_tail = s;
    l->stats.blocked++;
}

void stream_unblock(struct link_stream *s)
{
    struct link *l = s->link;

    if (!s->blocked) return;
    if (s->prev_blocked) s->prev_blocked->next_blocked = s->next_blocked;
    else l->blocked = s->next_blocked;
    if (s->next_blocked) s->next_blocked->prev_blocked = s->prev_blocked;
    else l->blocked_tail = s->prev_blocked;
    s->blocked = false;
}

/* The first stream that has waited the longest and has credit. */
static struct link_stream *next_writable(struct link *l)
{
    struct link_stream *s = l->blocked;

    if (l->phase != PHASE_OPEN || out_room(l) == 0) return NULL;
    while (s && s->credit_out == 0) s = s->next_blocked;
    return s;
}

/* Each stream at most once in a turn: one that writes without end does not keep the loop. */
void stream_wake_blocked(struct link *l)
{
    struct link_stream *s;

    link_enter(l);
    for (int n = l->stats.open_streams; n > 0 && (s = next_writable(l)); n--) {
        stream_unblock(s);
        l->opt.writable(l->opt.arg, s);
    }
    link_leave(l);
}

/* ---- link.h ---- */

bool link_send(struct link *l, enum frame_type type, struct str json)
{
    struct frame f = { .type = (uint8_t)type, .n = (uint32_t)json.n, .p = json.p };

    if (l->phase != PHASE_OPEN || json.n > frame_max(type)) return false;
    return out_frame(l, &f);
}

bool link_is_full(const struct link *l, size_t head_bytes)
{
    return l->stats.open_streams >= l->peer_streams ||
           l->queued + FRAME_HEAD + head_bytes > l->opt.max_out_bytes / 2;
}

struct link_stream *link_request(struct link *l, struct str head, bool no_body, void *user)
{
    struct frame f = { .type = FRAME_REQUEST, .n = (uint32_t)head.n, .p = head.p };
    struct link_stream *s;

    if (l->phase != PHASE_OPEN || l->opt.role != FRAME_SERVER) return NULL;
    if (head.n > frame_max(FRAME_REQUEST) || link_is_full(l, head.n)) return NULL;
    s = stream_open(l, l->last_id + 1, user);
    if (!s) return NULL;
    s->body_ended = no_body;
    f.stream = s->id;
    f.flags = no_body ? FRAME_LAST : 0;
    if (out_frame(l, &f)) return s;
    stream_close(s);
    return NULL;
}

bool link_stream_send(struct link_stream *s, enum frame_type type, struct str json)
{
    struct frame f = { .type = (uint8_t)type, .n = (uint32_t)json.n, .stream = s->id, .p = json.p };

    if (s->link->phase != PHASE_OPEN || json.n > frame_max(type)) return false;
    if (type == FRAME_REPLY) s->reply_sent = true;
    return out_frame(s->link, &f);
}

size_t link_room(const struct link_stream *s)
{
    size_t room = out_room(s->link);

    if (s->link->phase != PHASE_OPEN) return 0;
    return room < s->credit_out ? room : s->credit_out;
}

/* One frame of up to FRAME_BULK bytes. false: the link is closed. */
static bool write_piece(struct link_stream *s, const char *p, size_t n, bool last)
{
    struct frame f = { .n = (uint32_t)n, .stream = s->id, .p = p };

    f.type = s->link->opt.role == FRAME_SERVER ? FRAME_BODY : FRAME_DATA;
    f.flags = last ? FRAME_LAST : 0;
    if (!out_frame(s->link, &f)) return false;
    s->credit_out -= (uint32_t)n;
    if (last) s->body_ended = true;
    return true;
}

size_t link_write(struct link_stream *s, const void *p, size_t n, bool last)
{
    size_t done = 0;

    if (s->link->phase != PHASE_OPEN) return 0;
    if (s->link->opt.role == FRAME_WORKER) last = false;
    else if (s->body_ended) return 0;
    if (n == 0) {
        if (last) write_piece(s, "", 0, true);
        return 0;
    }
    while (done < n) {
        size_t k = link_room(s);
        if (k > n - done) k = n - done;
        if (k > FRAME_BULK) k = FRAME_BULK;
        if (k == 0 || !write_piece(s, (const char *)p + done, k, last && done + k == n)) break;
        done += k;
    }
    if (done < n) stream_block(s);
    return done;
}

bool link_end_stream(struct link_stream *s, struct str end)
{
    struct link *l = s->link;
    struct frame f = { .type = FRAME_END, .n = (uint32_t)end.n, .stream = s->id, .p = end.p };
    bool ok = l->phase == PHASE_OPEN && end.n <= frame_max(FRAME_END) && out_frame(l, &f);

    if (!s->ending) stream_close(s); /* else the link closes it, after `lost` */
    return ok;
}

/* Credit is granted again in pieces of half a window, so that a CREDIT frame is rare. */
void link_consumed(struct link_stream *s, size_t n)
{
    struct link *l = s->link;
    unsigned char credit[FRAME_CREDIT_BYTES];
    struct frame f = {
        .type = FRAME_CREDIT, .n = FRAME_CREDIT_BYTES, .stream = s->id, .p = (char *)credit
    };
    uint32_t outstanding = l->opt.window - s->credit_in - s->owed;

    s->owed += n < outstanding ? (uint32_t)n : outstanding;
    if (s->owed < (l->opt.window + 1) / 2 || l->phase != PHASE_OPEN) return;
    if (l->opt.role == FRAME_WORKER && s->body_ended) return; /* nothing more will come */
    frame_pack_credit(credit, s->owed);
    if (!out_frame(l, &f)) return;
    s->credit_in += s->owed;
    s->owed = 0;
}
