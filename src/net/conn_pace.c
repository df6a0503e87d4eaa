/* conn_pace.c - the rate at which large request bodies are read, over all connections.
 *
 * Reading a body costs the loop's thread time for every byte, also one that is refused: after the
 * reply its rest is read and discarded. Clients that send many large bodies would take that time
 * from the responses of others. So connections with a large body, and those that linger, share a
 * token bucket of libevent: PACE_RATE bytes per second in ticks of PACE_TICK_MS. Small requests are
 * never delayed. */
#include "net/conn.h"

enum {
    PACE_TICK_MS = 10,
    PACE_TICK_BYTES = 1 << 20,  /* about 100 MiB/s: a body of 16 MiB takes 0.16 s */
    PACE_SHARE_BYTES = 16 << 10 /* least part of a tick that a connection reads at once */
};

int pace_open(struct http *h, struct err *e)
{
    struct timeval tick = { .tv_usec = PACE_TICK_MS * 1000 };

    h->pace_cfg = ev_token_bucket_cfg_new(PACE_TICK_BYTES, PACE_TICK_BYTES, EV_RATE_LIMIT_MAX,
                                          EV_RATE_LIMIT_MAX, &tick);
    if (h->pace_cfg) h->pace = bufferevent_rate_limit_group_new(h->base, h->pace_cfg);
    if (!h->pace) return err_nomem(e, "the rate limit of bodies");
    bufferevent_rate_limit_group_set_min_share(h->pace, PACE_SHARE_BYTES);
    return OK;
}

/* All connections have left. */
void pace_close(struct http *h)
{
    if (h->pace) bufferevent_rate_limit_group_free(h->pace);
    if (h->pace_cfg) ev_token_bucket_cfg_free(h->pace_cfg);
}

/* Without memory it is read at any rate. */
void conn_pace(struct conn *c)
{
    if (!c->paced) c->paced = bufferevent_add_to_rate_limit_group(c->bev, c->h->pace) == 0;
}

void conn_unpace(struct conn *c)
{
    if (c->paced) bufferevent_remove_from_rate_limit_group(c->bev);
    c->paced = false;
}
