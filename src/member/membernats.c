/* membernats.c - the threads that talk to NATS: a worker's registrar, a gateway's roster. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "member/member.h"
#include "member/natsapi.h"
#include "member/plugin.h"

#include <stdio.h>

enum { PUT_MS = 1000, LIST_MS = 300, RETRY_MS = 500, MEMBERS = 512 };

/* State that both threads use. */
struct link {
    const struct nats_api *api;
    char url[256];
    struct nats_kv *kv; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool started, stop, connected; /* under lock */
    bool said;                     /* that NATS is away */
};

static int link_open(struct link *l, const char *url, struct err *e)
{
    int rc = plugin_open((void **)&l->api, NATS_LIB, NATS_ENV, NATS_SYMBOL, NATS_PACKAGE, e);

    if (rc != OK) return rc;
    if (strlen(url) >= sizeof l->url) return err_set(e, E_INVALID, "nats: the URL is too long");
    snprintf(l->url, sizeof l->url, "%s", url);
    return lock_init(&l->lock, &l->news, "NATS", e);
}

static int link_start(struct link *l, const char *name, void *(*run)(void *arg), void *arg,
                      struct err *e)
{
    int rc = thread_start(&l->thread, name, run, arg, e);

    l->started = rc == OK;
    return rc;
}

static void link_stop(struct link *l)
{
    if (!l->started) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->started = false;
}

static void set_connected(struct link *l, bool on, const char *why)
{
    pthread_mutex_lock(&l->lock);
    l->connected = on;
    pthread_mutex_unlock(&l->lock);
    if (on && l->said) log_info("NATS %s answers again", l->url);
    if (!on && !l->said) log_warn("NATS %s: %s; trying again", l->url, why);
    l->said = !on;
}

/* The thread's: connects where it is not connected. */
static bool link_connect(struct link *l)
{
    char why[200] = "";

    if (!l->kv) l->kv = l->api->open(l->url, NATS_BUCKET, NATS_LEASE_MS, why, sizeof why);
    if (!l->kv) set_connected(l, false, why);
    return l->kv != NULL;
}

/* Until something is there, or ms have passed. Called and left with the lock. */
static void link_wait(struct link *l, int ms)
{
    uint64_t at = clock_ns() + (uint64_t)ms * 1000000;
    struct timespec t = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };

    pthread_cond_timedwait(&l->news, &l->lock, &t);
}

static bool link_is_connected(struct link *l)
{
    bool on;

    pthread_mutex_lock(&l->lock);
    on = l->connected;
    pthread_mutex_unlock(&l->lock);
    return on;
}

/* ---- the worker's side ---- */

struct registrar {
    struct link l;
    struct buf record; /* under lock: what is to be written */
    bool fresh;
    char key[NATS_KEY_BYTES];
};

static void put_record(struct registrar *r, struct str record)
{
    char why[200] = "";

    if (!link_connect(&r->l)) return;
    if (r->l.api->put(r->l.kv, r->key, record.p, record.n, why, sizeof why))
        set_connected(&r->l, true, "");
    else set_connected(&r->l, false, why);
}

static void *run_registrar(void *arg)
{
    struct registrar *r = arg;
    struct buf now = { 0 };
    bool stop;

    do {
        pthread_mutex_lock(&r->l.lock);
        if (!r->fresh && !r->l.stop) link_wait(&r->l, PUT_MS);
        stop = r->l.stop;
        r->fresh = false;
        buf_clear(&now);
        buf_put_str(&now, buf_str(&r->record));
        pthread_mutex_unlock(&r->l.lock);
        if (!stop && now.n && !now.failed) put_record(r, buf_str(&now));
    } while (!stop);
    if (r->l.kv && r->key[0]) r->l.api->remove(r->l.kv, r->key);
    if (r->l.kv) r->l.api->close(r->l.kv);
    buf_release(&now);
    return NULL;
}

int registrar_open(struct registrar **out, const char *nats_url, struct err *e)
{
    struct registrar *r = mem_new(struct registrar);
    int rc;

    if (!r) return err_nomem(e, "the registration with NATS");
    if ((rc = link_open(&r->l, nats_url, e)) != OK) {
        mem_free(r);
        return rc;
    }
    if ((rc = link_start(&r->l, "tern-nats", run_registrar, r, e)) != OK) {
        registrar_close(r);
        return rc;
    }
    *out = r;
    return OK;
}

void registrar_set(struct registrar *r, const struct member *m)
{
    if (!r) return;
    pthread_mutex_lock(&r->l.lock);
    buf_clear(&r->record);
    member_write(m, &r->record);
    member_key(m->url, r->key);
    r->fresh = true;
    pthread_cond_signal(&r->l.news);
    pthread_mutex_unlock(&r->l.lock);
}

bool registrar_is_connected(struct registrar *r) { return r && link_is_connected(&r->l); }

void registrar_close(struct registrar *r)
{
    if (!r) return;
    link_stop(&r->l);
    lock_destroy(&r->l.lock, &r->l.news);
    buf_release(&r->record);
    mem_free(r);
}

/* ---- the gateway's side ---- */

struct roster {
    struct link l;
    void (*changed)(void *arg);
    void *arg;
    struct member *now, *next; /* [MEMBERS]; now: under lock, next: the thread's */
    int n_now, n_next;
    bool fresh;
    bool said_bad;
};

static void add_member(void *arg, const char *value, size_t n)
{
    struct roster *r = arg;
    struct err e = { 0 };

    if (r->n_next == MEMBERS) return;
    if (member_read(&r->next[r->n_next], str_of(value, n), &e) == OK) {
        r->n_next++;
    } else if (!r->said_bad) {
        r->said_bad = true;
        log_warn("NATS %s: %s", r->l.url, e.msg);
    }
}

static void list_members(struct roster *r)
{
    char why[200] = "";

    if (!link_connect(&r->l)) return;
    r->n_next = 0;
    if (!r->l.api->list(r->l.kv, add_member, r, why, sizeof why)) {
        set_connected(&r->l, false, why);
        return;
    }
    set_connected(&r->l, true, "");
    pthread_mutex_lock(&r->l.lock);
    memcpy(r->now, r->next, (size_t)r->n_next * sizeof *r->now);
    r->n_now = r->n_next;
    r->fresh = true;
    pthread_mutex_unlock(&r->l.lock);
    r->changed(r->arg);
}

static void *run_roster(void *arg)
{
    struct roster *r = arg;
    bool stop;

    do {
        list_members(r);
        pthread_mutex_lock(&r->l.lock);
        if (!r->l.stop) link_wait(&r->l, r->l.connected ? LIST_MS : RETRY_MS);
        stop = r->l.stop;
        pthread_mutex_unlock(&r->l.lock);
    } while (!stop);
    if (r->l.kv) r->l.api->close(r->l.kv);
    return NULL;
}

int roster_open(struct roster **out, const char *nats_url, void (*changed)(void *arg), void *arg,
                struct err *e)
{
    struct roster *r = mem_new(struct roster);
    int rc;

    if (!r) return err_nomem(e, "the members of NATS");
    r->changed = changed;
    r->arg = arg;
    r->now = mem_array(MEMBERS, sizeof *r->now);
    r->next = mem_array(MEMBERS, sizeof *r->next);
    rc = r->now && r->next ? link_open(&r->l, nats_url, e) : err_nomem(e, "the members of NATS");
    if (rc != OK) {
        mem_free(r->now);
        mem_free(r->next);
        mem_free(r);
        return rc;
    }
    if ((rc = link_start(&r->l, "tern-nats", run_roster, r, e)) != OK) {
        roster_close(r);
        return rc;
    }
    *out = r;
    return OK;
}

int roster_take(struct roster *r, struct member *out, int max)
{
    int n = -1;

    pthread_mutex_lock(&r->l.lock);
    if (r->fresh) {
        n = r->n_now < max ? r->n_now : max;
        memcpy(out, r->now, (size_t)n * sizeof *out);
        r->fresh = false;
    }
    pthread_mutex_unlock(&r->l.lock);
    return n;
}

bool roster_is_connected(struct roster *r) { return r && link_is_connected(&r->l); }

void roster_close(struct roster *r)
{
    if (!r) return;
    link_stop(&r->l);
    lock_destroy(&r->l.lock, &r->l.news);
    mem_free(r->now);
    mem_free(r->next);
    mem_free(r);
}
