/* pool_swap.c - the budget, who goes for whom, and models that nobody has used for long. On the pool's
 * thread.
 *
 * The budget is memory-limit, or what the machine has (membudget.h), and the number of loaded models.
 * The choice is that of swapplan.h; here its input is made and its answer carried out. A model is
 * evicted under the lock that references are taken under, so one in use cannot be. */
#include "pool/pool_impl.h"

#include "base/log.h"
#include "base/memavail.h"

#include <string.h>

enum { RESIDENCE_MS = 2000, PATIENCE_MS = 5000 };
enum { AGE_STEPS = 20 }; /* of priority count as much as the patience: 250 ms each */

/* ---- unloading ---- */

void swap_retire(struct slot *s, int why)
{
    struct pool_instance *m = s->now;

    counter_add(&s->counts.unloads[why], 1);
    s->now = NULL;
    s->yields = false;
    s->on_purpose = true;
    put_state(s, POOL_DRAINING);
    pool_put(m);
}

/* Has the model no user but the pool? With the lock held. */
static bool is_unused(const struct pool_instance *m)
{
    return atomic_load_explicit(&m->refs, memory_order_acquire) == 1;
}

/* false: it is in use again. */
static bool evict(struct pool *p, struct slot *s, const struct slot *for_whom)
{
    bool unused;

    pthread_mutex_lock(&p->lock);
    unused = s->now && is_unused(s->now);
    if (unused) swap_retire(s, POOL_UNLOAD_ROOM);
    pthread_mutex_unlock(&p->lock);
    if (!unused) return false;
    log_info("model '%s' is unloaded to make room for '%s'", s->m.id, for_whom->m.id);
    load_close_unused(p);
    return true;
}

/* ---- the budget ---- */

static bool is_auto(const struct pool *p) { return p->opt.memory_limit == POOL_MEMORY_AUTO; }

/* Bytes by which m exceeds the limit of its device, if that has one; false: it does so alone. */
static bool find_device_lack(const struct pool *p, const struct pool_instance *m, uint64_t *out)
{
    uint64_t need = membudget_device(&m->need), limit = room_limit_on(p, m->need.device), all;

    *out = 0;
    if (!limit || !need) return true;
    all = room_taken_on(p, m->need.device) + need;
    *out = all > limit ? all - limit : 0;
    return need <= limit;
}

/* The memory that m lacks now; false: the machine, or a limit, is too small for it. */
static bool find_lack(struct pool *p, const struct pool_instance *m, struct swap_lack *out)
{
    uint64_t all = atomic_load(&p->taken_host) + pool_parked_bytes(p) + membudget_on_host(&m->need);
    struct membudget_lack lack = { 0 };
    struct memavail a;

    *out = (struct swap_lack){ 0 };
    if (p->opt.max_loaded > 0 && p->n_taken >= p->opt.max_loaded)
        out->models = p->n_taken + 1 - p->opt.max_loaded;
    if (is_auto(p)) {
        room_read_free(p, &a);
        lack = membudget_find_lack(&m->need, &a);
        out->bytes = lack.free;
        out->address = lack.address;
    } else if (p->opt.memory_limit && all > p->opt.memory_limit) {
        out->bytes = all - p->opt.memory_limit;
    }
    return find_device_lack(p, m, &out->device) && !lack.never;
}

static int check_machine(const struct pool *p, const struct pool_instance *m, struct err *e)
{
    struct memavail a;

    room_read_free(p, &a);
    return membudget_check_machine(&m->need, &a, e);
}

static int check_device(const struct pool *p, const struct pool_instance *m, struct err *e)
{
    return membudget_check_device(&m->need, room_taken_on(p, m->need.device),
                                  room_limit_on(p, m->need.device), e);
}

/* The error of a model that does not fit. m NULL: *e has it. */
static void explain_lack(const struct pool *p, const struct pool_instance *m, struct err *e)
{
    int rc = OK;

    if (!m) return;
    if (m->refused.code != OK) {
        *e = m->refused;
        return;
    }
    rc = check_device(p, m, e);
    if (rc != OK) return;
    if (is_auto(p)) rc = check_machine(p, m, e);
    else if (p->opt.memory_limit)
        rc = membudget_check(&m->need, atomic_load(&p->taken_host), p->opt.memory_limit, e);
    if (rc == OK)
        err_set(e, E_MEMORY, "%d models are loaded, and none of them may be unloaded: models-max",
                p->n_taken);
}

int swap_count(struct pool *p, struct pool_instance *m, struct err *e)
{
    uint64_t limit = p->opt.memory_limit;
    int rc = check_device(p, m, e);

    if (rc == OK && limit && limit != POOL_MEMORY_AUTO)
        rc = membudget_check(&m->need, atomic_load(&p->taken_host), limit, e);
    if (rc != OK) return rc;
    m->bytes = membudget_total(&m->need);
    atomic_fetch_add(&p->taken_bytes, m->bytes);
    atomic_fetch_add(&p->taken_host, membudget_on_host(&m->need));
    membudget_add(&p->held, &m->need);
    m->counted = true;
    m->next_taken = p->taken;
    p->taken = m;
    p->n_taken++;
    p->n_changes++;
    return OK;
}

void swap_uncount(struct pool *p, struct pool_instance *m)
{
    struct pool_instance **at = &p->taken;

    while (*at != m) at = &(*at)->next_taken;
    *at = m->next_taken;
    atomic_fetch_sub(&p->taken_bytes, m->bytes);
    atomic_fetch_sub(&p->taken_host, membudget_on_host(&m->need));
    membudget_take(&p->held, &m->need);
    p->n_taken--;
    p->n_changes++;
}

/* ---- the plan ---- */

/* With the lock held. Arrival of the oldest who wants the model. */
static uint64_t wanted_since(const struct slot *s)
{
    uint64_t at = s->asked ? s->asked_ns : UINT64_MAX;

    for (const struct pool_wait *w = s->waits; w; w = w->next)
        if (!w->for_end && w->since_ns < at) at = w->since_ns;
    return at;
}

/* The memory that closing the instance gives back. device: the one that counts; NULL: each does. */
static void add_given(const struct pool *p, const struct pool_instance *m, const char *device,
                      struct swap_model *out)
{
    out->bytes += is_auto(p) ? membudget_host(&m->need) : membudget_on_host(&m->need);
    if (!m->host->own_bytes) out->address += membudget_host(&m->need) + m->need.mapped;
    if (!device || strcmp(device, m->need.device) == 0) out->device += membudget_device(&m->need);
}

static void view_slot(const struct pool *p, const struct slot *s, const char *device,
                      struct swap_model *out)
{
    const struct pool_instance *m = s->now;

    *out = (struct swap_model){ .wanted = !m && is_wanted(s) && s->n_open == 0,
                                .since_ns = wanted_since(s),
                                .priority = s->m.priority };
    if (!m && s->n_open > 0) {
        out->leaving = true;
        for (m = p->open; m; m = m->next)
            if (m->model == &s->m) add_given(p, m, device, out);
        return;
    }
    if (!m) return;
    out->loaded = true;
    out->in_use = !is_unused(m);
    out->pinned = s->m.pinned;
    out->ready_ns = m->ready_ns;
    out->used_ns = m->used_ns;
    out->reload_ns = s->reload_ns;
    add_given(p, m, device, out);
}

static void make_view(struct pool *p, const char *device)
{
    p->n_view = (size_t)pool_n(p);
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_view; i++) view_slot(p, p->slots[i], device, &p->view[i]);
    pthread_mutex_unlock(&p->lock);
}

static struct swap_opt plan_options(const struct pool *p)
{
    int residence = p->opt.residence_ms ? p->opt.residence_ms : RESIDENCE_MS;
    int patience = p->opt.patience_ms ? p->opt.patience_ms : PATIENCE_MS;

    return (struct swap_opt){ (uint64_t)residence * MS, (uint64_t)patience * MS,
                              (uint64_t)patience * MS / AGE_STEPS };
}

/* The models that yield, and no others. */
static void set_yields(struct pool *p, struct slot *for_whom)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_view; i++) {
        bool yields = p->act[i] == SWAP_YIELD && p->slots[i]->now;
        if (yields && !p->slots[i]->yields)
            log_info("model '%s' takes no more requests until '%s' is loaded", p->slots[i]->m.id,
                     for_whom->m.id);
        p->slots[i]->yields = yields;
        if (yields && !for_whom->switch_ns) for_whom->switch_ns = clock_ns();
    }
    pthread_mutex_unlock(&p->lock);
}

/* All of them, or as many as are still unused; false: none was. */
static bool evict_chosen(struct pool *p, struct slot *for_whom)
{
    bool any = false;

    if (!for_whom->switch_ns) for_whom->switch_ns = clock_ns();
    for (size_t i = 0; i < p->n_view; i++)
        if (p->act[i] == SWAP_EVICT) any |= evict(p, p->slots[i], for_whom);
    return any;
}

/* Missing memory of m's device counts if others can give it back. If not, the layers that do not fit
 * there run on the host, or the model is refused. Without a plan one model goes at a time. */
static uint64_t device_lack(struct pool *p, const struct slot *s, const struct pool_instance *m)
{
    struct swap_lack lack = { .device = m ? m->need.device_lack : 1 };

    if (!lack.device || s->at_start) return 0;
    return swapplan_can_do(p->view, (int)p->n_view, &lack) ? lack.device : 0;
}

static bool is_nothing(const struct swap_lack *l)
{
    return !l->bytes && !l->models && !l->address && !l->device;
}

/* The memory that m lacks, and the step that follows. SWAP_LOAD without a lack: there is room. */
static enum swap_verdict look_for_room(struct pool *p, int i, const struct pool_instance *m,
                                       struct swap_lack *lack, uint64_t *look_ns)
{
    struct swap_opt opt = plan_options(p);
    const struct slot *s = p->slots[i];
    uint64_t more;

    *lack = (struct swap_lack){ 0 };
    *look_ns = UINT64_MAX;
    if (m && !find_lack(p, m, lack)) {
        *lack = (struct swap_lack){ 0 };
        return SWAP_NEVER;
    }
    make_view(p, m ? m->need.device : NULL);
    if (p->view[i].since_ns == UINT64_MAX) p->view[i].since_ns = clock_ns();
    more = device_lack(p, s, m);
    if (more > lack->device) lack->device = more;
    if (!lack->device && (!m || m->refused.code != OK)) return SWAP_NEVER;
    if (is_nothing(lack)) return SWAP_LOAD;
    if (s->at_start) return SWAP_NEVER;
    return swapplan_room(p->view, (int)p->n_view, i, lack, &opt, clock_ns(), p->act, look_ns);
}

/* Is there room without the parked blocks, perhaps after others have gone? */
static bool park_helps(struct pool *p, struct swap_lack lack)
{
    uint64_t parked = pool_parked_bytes(p);

    if (!lack.bytes || !parked) return false;
    lack.bytes -= parked < lack.bytes ? parked : lack.bytes;
    return swapplan_can_do(p->view, (int)p->n_view, &lack);
}

enum room swap_make_room(struct pool *p, int i, struct pool_instance *m, bool first, struct err *e)
{
    struct slot *s = p->slots[i];
    struct swap_lack lack;
    uint64_t look_ns;

    for (;;) {
        enum swap_verdict v = look_for_room(p, i, m, &lack, &look_ns);

        if (park_helps(p, lack) && pool_shrink_park(p, lack.bytes)) continue;
        if (v == SWAP_NEVER) {
            explain_lack(p, m, e);
            return ROOM_NEVER;
        }
        if (is_nothing(&lack)) break;
        if (!first) return ROOM_LATER;
        if (v == SWAP_WAIT) {
            set_yields(p, s);
            if (look_ns < p->look_ns) p->look_ns = look_ns;
            return ROOM_LATER;
        }
        if (evict_chosen(p, s)) return ROOM_AGAIN;
    }
    return is_auto(p) && check_machine(p, m, e) != OK ? ROOM_NEVER : ROOM;
}

/* Requests of models that are not loaded and fit beside the others need not wait for one that does
 * not, unless that one has waited so long that models in use yield for it. */
static bool may_pass(const struct pool *p, int first)
{
    struct swap_opt opt = plan_options(p);

    return clock_ns() < p->view[first].since_ns + opt.patience_ns;
}

static void clear_yields(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < pool_n(p); i++) p->slots[i]->yields = false;
    pthread_mutex_unlock(&p->lock);
}

static void set_wants_room(struct pool *p, bool wants)
{
    pthread_mutex_lock(&p->lock);
    p->wants_room = wants;
    pthread_mutex_unlock(&p->lock);
}

bool swap_load_next(struct pool *p)
{
    struct swap_opt opt = plan_options(p);
    int first = NEVER, i;

    p->look_ns = UINT64_MAX;
    load_end_plans(p);
    make_view(p, NULL);
    memset(p->skip, 0, p->n_view * sizeof *p->skip);
    set_wants_room(p, true); /* before the look: an end of use meanwhile is news */
    while ((i = swapplan_next(p->view, (int)p->n_view, p->skip, &opt)) >= 0) {
        if (load_slot(p, i, first == NEVER)) {
            clear_yields(p);
            return true;
        }
        if (first == NEVER) first = i;
        make_view(p, NULL);
        p->skip[i] = true;
        if (p->view[first].wanted && !may_pass(p, first)) break;
    }
    if (first == NEVER) clear_yields(p);
    set_wants_room(p, first != NEVER);
    return false;
}

/* ---- models that nobody uses ---- */

/* When it goes; UINT64_MAX: not by itself. With the lock held. */
static uint64_t expiry_of(const struct slot *s)
{
    const struct pool_instance *m = s->now;

    if (!m || s->m.pinned || m->keep_ms < 0 || !is_unused(m)) return UINT64_MAX;
    return m->used_ns + (uint64_t)m->keep_ms * MS;
}

void swap_expire(struct pool *p)
{
    for (int i = 0; i < pool_n(p); i++) {
        struct slot *s = p->slots[i];
        bool goes;

        pthread_mutex_lock(&p->lock);
        goes = expiry_of(s) <= clock_ns() && s->n_waits == 0;
        if (goes) swap_retire(s, POOL_UNLOAD_IDLE);
        pthread_mutex_unlock(&p->lock);
        if (!goes) continue;
        log_info("model '%s' is unloaded: it was not used for its keep-alive", s->m.id);
        pool_report_change(p);
    }
}

uint64_t swap_next_expiry(struct pool *p)
{
    uint64_t at = UINT64_MAX;

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < pool_n(p); i++) {
        uint64_t one = expiry_of(p->slots[i]);
        if (one < at) at = one;
    }
    pthread_mutex_unlock(&p->lock);
    return at;
}
