/* natsledger.c - tern-nats.so: the queue and the store of ledger/ledgerapi.h over libnats.
 *
 * All streams are in files of the NATS server, so that a server that restarts has them. Streams and a
 * consumer that exist are used as they are: an operator may have made them with other limits, or with
 * replicas. Acknowledgements are sent to the reply subject of a delivery by hand, so that they do not
 * depend on the subscription that took it. */
#include "ledger/ledgerapi.h"

#include "base/mem.h"

#include <nats/nats.h>
#include <stdio.h>
#include <string.h>

enum { CONNECT_MS = 2000, WAIT_MS = 2000, RECONNECT_MS = 100, PING_MS = 1000, PINGS_OUT = 3 };

#define NS INT64_C(1000000)

struct ledger_link {
    natsConnection *nc;
    jsCtx *js;
    natsSubscription *sub; /* NULL: none yet */
    struct ledger_limits lim;
    int has_streams;
};

static const char *const names[] = { "tern-jobs", "tern-answers", "tern-files", "tern-records",
                                     "tern-lines" };
static const char *const patterns[] = { "tern.jobs.*.*", "tern.answers.*.*", "tern.files.*.*",
                                        "tern.records.*.*.*", "tern.lines.*.*" };

static void say(char *why, size_t n, const char *what, natsStatus s)
{
    const char *text = nats_GetLastError(NULL);

    snprintf(why, n, "%s: %s%s%s", what, natsStatus_GetText(s), text && *text ? ": " : "",
             text ? text : "");
}

static int link_is_connected(struct ledger_link *l)
{
    natsConnStatus s = natsConnection_Status(l->nc);
    return s == NATS_CONN_STATUS_CONNECTED ? 1 : s == NATS_CONN_STATUS_CLOSED ? -1 : 0;
}

/* ---- streams ---- */

static natsStatus add_stream(struct ledger_link *l, enum ledger_stream st)
{
    const char *subjects[] = { patterns[st] };
    jsStreamInfo *si = NULL;
    jsErrCode code = 0;
    jsStreamConfig c;
    natsStatus s;

    jsStreamConfig_Init(&c);
    c.Name = names[st];
    c.Subjects = subjects;
    c.SubjectsLen = 1;
    c.Storage = js_FileStorage;
    switch (st) {
    case LEDGER_JOBS:
        c.Description = "durable requests of tern's gateways without an answer";
        c.Retention = js_WorkQueuePolicy;
        c.Discard = js_DiscardNew;
        c.MaxMsgs = l->lim.max_jobs;
        c.MaxBytes = l->lim.max_job_bytes;
        break;
    case LEDGER_ANSWERS:
        c.Description = "answers of durable requests, one for each";
        c.MaxMsgs = l->lim.max_answers;
        c.MaxAge = l->lim.answer_s * 1000 * NS;
        break;
    case LEDGER_FILES:
        c.Description = "bytes of files of tern's gateways";
        c.Discard = js_DiscardNew;
        break;
    case LEDGER_RECORDS:
        c.Description = "files and batches of tern's gateways";
        c.MaxMsgsPerSubject = 1;
        break;
    default:
        c.Description = "answers of the lines of batches, one for each";
        c.MaxAge = l->lim.line_s * 1000 * NS;
    }
    s = js_AddStream(&si, l->js, &c, NULL, &code);
    jsStreamInfo_Destroy(si);
    return code == JSStreamNameExistErr ? NATS_OK : s;
}

/* No limit of deliveries: the server would leave a job that reached it in the queue without a word. The
 * gateways count them. */
static natsStatus add_consumer(struct ledger_link *l)
{
    jsConsumerInfo *ci = NULL;
    jsErrCode code = 0;
    jsConsumerConfig c;
    natsStatus s;

    jsConsumerConfig_Init(&c);
    c.Durable = LEDGER_CONSUMER;
    c.AckPolicy = js_AckExplicit;
    c.AckWait = (int64_t)l->lim.ack_ms * NS;
    c.MaxDeliver = -1;
    c.MaxAckPending = l->lim.max_pending;
    s = js_AddConsumer(&ci, l->js, names[LEDGER_JOBS], &c, NULL, &code);
    jsConsumerInfo_Destroy(ci);
    return code == JSConsumerNameExistErr ? NATS_OK : s;
}

static natsStatus make_streams(struct ledger_link *l)
{
    natsStatus s = NATS_OK;

    if (l->has_streams) return NATS_OK;
    for (int st = 0; st < LEDGER_STREAMS && s == NATS_OK; st++)
        s = add_stream(l, (enum ledger_stream)st);
    if (s == NATS_OK) s = add_consumer(l);
    l->has_streams = s == NATS_OK;
    return s;
}

/* ---- the connection ---- */

/* Requests that wait when the connection breaks fail at once. Pings find a server that stands still. */
static natsStatus connect_to(struct ledger_link *l, const char *url)
{
    natsOptions *o = NULL;
    jsOptions js;
    natsStatus s = natsOptions_Create(&o);

    if (s == NATS_OK) s = natsOptions_SetURL(o, url);
    if (s == NATS_OK) s = natsOptions_SetTimeout(o, CONNECT_MS);
    if (s == NATS_OK) s = natsOptions_SetMaxReconnect(o, -1);
    if (s == NATS_OK) s = natsOptions_SetReconnectWait(o, RECONNECT_MS);
    if (s == NATS_OK) s = natsOptions_SetReconnectJitter(o, RECONNECT_MS / 2, RECONNECT_MS / 2);
    if (s == NATS_OK) s = natsOptions_SetPingInterval(o, PING_MS);
    if (s == NATS_OK) s = natsOptions_SetMaxPingsOut(o, PINGS_OUT);
    if (s == NATS_OK) s = natsOptions_SetFailRequestsOnDisconnect(o, true);
    if (s == NATS_OK) s = natsOptions_SetName(o, "tern gateway");
    if (s == NATS_OK) s = natsConnection_Connect(&l->nc, o);
    natsOptions_Destroy(o);
    if (s != NATS_OK) return s;
    jsOptions_Init(&js);
    js.Wait = WAIT_MS;
    return natsConnection_JetStream(&l->js, l->nc, &js);
}

static void drop_sub(struct ledger_link *l)
{
    if (l->sub) natsSubscription_Unsubscribe(l->sub);
    natsSubscription_Destroy(l->sub);
    l->sub = NULL;
}

static void link_close(struct ledger_link *l)
{
    if (!l) return;
    natsSubscription_Destroy(l->sub);
    if (l->nc) natsConnection_FlushTimeout(l->nc, 500); /* acknowledgements */
    jsCtx_Destroy(l->js);
    natsConnection_Destroy(l->nc);
    mem_free(l);
}

static struct ledger_link *link_open(const char *url, const struct ledger_limits *lim, char *why,
                                     size_t n)
{
    struct ledger_link *l = mem_new(struct ledger_link);
    natsStatus s;

    if (!l) {
        snprintf(why, n, "out of memory");
        return NULL;
    }
    l->lim = *lim;
    if ((s = connect_to(l, url)) != NATS_OK) say(why, n, "connecting", s);
    else if ((s = make_streams(l)) != NATS_OK) say(why, n, "the JetStream streams", s);
    if (s == NATS_OK) return l;
    link_close(l);
    return NULL;
}

static size_t link_max_bytes(struct ledger_link *l)
{
    int64_t n = natsConnection_GetMaxPayload(l->nc);
    return n > 0 ? (size_t)n : 0;
}

/* ---- messages ---- */

/* Without a responder there is no stream, or JetStream has not started yet: nothing is written. */
static enum ledger_result result_of(struct ledger_link *l, natsStatus s, jsErrCode code)
{
    const char *text = nats_GetLastError(NULL);

    if (s == NATS_OK) return LEDGER_DONE;
    if (code == JSStreamWrongLastSequenceErr) return LEDGER_EXISTS;
    if (code == JSStreamStoreFailedErr && text && strstr(text, "maximum")) return LEDGER_FULL;
    if (code == JSInsufficientResourcesErr || code == JSStorageResourcesExceededErr)
        return LEDGER_FULL;
    if (code == JSStreamMessageExceedsMaximumErr || s == NATS_MAX_PAYLOAD) return LEDGER_TOO_LARGE;
    if (code == JSNoMessageFoundErr || (s == NATS_NOT_FOUND && !code)) return LEDGER_MISSING;
    if (code == JSStreamNotFoundErr || code == JSConsumerNotFoundErr || s == NATS_NO_RESPONDERS) {
        l->has_streams = 0;
        return LEDGER_AWAY;
    }
    return code ? LEDGER_REFUSED : LEDGER_UNSURE;
}

/* true: JetStream can be asked. */
static int begin(struct ledger_link *l, char *why, size_t n)
{
    natsStatus s;

    if (link_is_connected(l) != 1) {
        snprintf(why, n, "not connected");
        return 0;
    }
    if ((s = make_streams(l)) == NATS_OK) return 1;
    say(why, n, "the JetStream streams", s);
    return 0;
}

static enum ledger_result link_add(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject, const char *p, size_t n, int wait_ms,
                                   char *why, size_t n_why)
{
    enum ledger_result r;
    jsErrCode code = 0;
    jsPubOptions o;
    natsStatus s;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    if (n > link_max_bytes(l)) return LEDGER_TOO_LARGE;
    jsPubOptions_Init(&o);
    o.MaxWait = wait_ms;
    o.ExpectStream = names[st];
    o.ExpectNoMessage = true;
    s = js_Publish(NULL, l->js, subject, p, (int)n, &o, &code);
    r = result_of(l, s, code);
    if (r != LEDGER_DONE) say(why, n_why, "writing", s);
    return r;
}

static enum ledger_result link_put(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject, const char *p, size_t n, uint64_t *seq,
                                   int wait_ms, char *why, size_t n_why)
{
    enum ledger_result r;
    jsPubAck *ack = NULL;
    jsErrCode code = 0;
    jsPubOptions o;
    natsStatus s;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    if (n > link_max_bytes(l)) return LEDGER_TOO_LARGE;
    jsPubOptions_Init(&o);
    o.MaxWait = wait_ms;
    o.ExpectStream = names[st];
    o.ExpectLastSubjectSeq = *seq;
    o.ExpectNoMessage = *seq == 0;
    s = js_Publish(&ack, l->js, subject, p, (int)n, &o, &code);
    r = result_of(l, s, code);
    if (r != LEDGER_DONE) say(why, n_why, "writing", s);
    else *seq = ack->Sequence;
    jsPubAck_Destroy(ack);
    return r;
}

static enum ledger_result link_erase(struct ledger_link *l, enum ledger_stream st,
                                     const char *pattern, char *why, size_t n_why)
{
    enum ledger_result r;
    jsErrCode code = 0;
    jsOptions o;
    natsStatus s;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    jsOptions_Init(&o);
    o.Wait = WAIT_MS;
    o.Stream.Purge.Subject = pattern;
    s = js_PurgeStream(l->js, names[st], &o, &code);
    r = result_of(l, s, code);
    if (r != LEDGER_DONE) say(why, n_why, "removing", s);
    return r;
}

static enum ledger_result link_last(struct ledger_link *l, enum ledger_stream st, uint64_t *seq,
                                    char *why, size_t n_why)
{
    jsStreamInfo *si = NULL;
    enum ledger_result r;
    jsErrCode code = 0;
    natsStatus s;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    s = js_GetStreamInfo(&si, l->js, names[st], NULL, &code);
    r = result_of(l, s, code);
    if (r == LEDGER_UNSURE) r = LEDGER_AWAY;
    if (r != LEDGER_DONE) say(why, n_why, "asking for a stream", s);
    else *seq = si->State.LastSeq;
    jsStreamInfo_Destroy(si);
    return r;
}

static enum ledger_result link_get(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject,
                                   void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                                   char *why, size_t n_why)
{
    enum ledger_result r;
    natsMsg *msg = NULL;
    jsErrCode code = 0;
    natsStatus s;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    s = js_GetLastMsg(&msg, l->js, names[st], subject, NULL, &code);
    r = result_of(l, s, code);
    if (r == LEDGER_UNSURE) r = LEDGER_AWAY;
    if (r == LEDGER_DONE) {
        struct ledger_msg m = { .subject = natsMsg_GetSubject(msg),
                                .p = natsMsg_GetData(msg),
                                .n = (size_t)natsMsg_GetDataLength(msg),
                                .seq = natsMsg_GetSequence(msg) };
        each(arg, &m);
    } else {
        say(why, n_why, "reading", s);
    }
    natsMsg_Destroy(msg);
    return r;
}

static enum ledger_result link_remove(struct ledger_link *l, const char *subject, char *why,
                                      size_t n)
{
    natsMsg *msg = NULL;
    jsErrCode code = 0;
    natsStatus s;
    enum ledger_result r;

    if (!begin(l, why, n)) return LEDGER_AWAY;
    s = js_GetLastMsg(&msg, l->js, names[LEDGER_JOBS], subject, NULL, &code);
    if (s == NATS_OK)
        s = js_DeleteMsg(l->js, names[LEDGER_JOBS], natsMsg_GetSequence(msg), NULL, &code);
    natsMsg_Destroy(msg);
    r = result_of(l, s, code);
    if (r != LEDGER_DONE) say(why, n, "removing", s);
    return r;
}

static enum ledger_result link_list(struct ledger_link *l, enum ledger_stream st,
                                    const char *pattern,
                                    void (*each)(void *arg, const char *subject), void *arg,
                                    char *why, size_t n_why)
{
    jsStreamInfo *si = NULL;
    jsErrCode code = 0;
    jsOptions o;
    natsStatus s;
    enum ledger_result r;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    jsOptions_Init(&o);
    o.Wait = WAIT_MS;
    o.Stream.Info.SubjectsFilter = pattern;
    s = js_GetStreamInfo(&si, l->js, names[st], &o, &code);
    r = result_of(l, s, code);
    if (r == LEDGER_UNSURE) r = LEDGER_AWAY;
    if (r != LEDGER_DONE) say(why, n_why, "listing", s);
    for (int i = 0; r == LEDGER_DONE && si->State.Subjects && i < si->State.Subjects->Count; i++)
        each(arg, si->State.Subjects->List[i].Subject);
    jsStreamInfo_Destroy(si);
    return r;
}

/* ---- the state of the queue ---- */

static natsStatus count_messages(struct ledger_link *l, uint64_t *n)
{
    jsStreamInfo *si = NULL;
    natsStatus s = js_GetStreamInfo(&si, l->js, names[LEDGER_JOBS], NULL, NULL);

    if (s == NATS_OK) *n = si->State.Msgs;
    jsStreamInfo_Destroy(si);
    return s;
}

/* Messages are counted before and after the consumer: what was added or removed between does not
 * count as stuck. */
static enum ledger_result link_count(struct ledger_link *l, uint64_t *n_jobs, uint64_t *n_stuck)
{
    uint64_t before = 0, after = 0, known = 0;
    jsConsumerInfo *ci = NULL;
    char why[64];
    natsStatus s;

    if (!begin(l, why, sizeof why)) return LEDGER_AWAY;
    s = count_messages(l, &before);
    if (s == NATS_OK)
        s = js_GetConsumerInfo(&ci, l->js, names[LEDGER_JOBS], LEDGER_CONSUMER, NULL, NULL);
    if (s == NATS_OK) known = ci->NumPending + (uint64_t)ci->NumAckPending;
    jsConsumerInfo_Destroy(ci);
    if (s == NATS_OK) s = count_messages(l, &after);
    if (s != NATS_OK) return LEDGER_AWAY;
    *n_jobs = after;
    if (before < after) after = before;
    *n_stuck = after > known ? after - known : 0;
    return LEDGER_DONE;
}

/* A new consumer begins with the first job. Those that are being computed are computed twice. */
static enum ledger_result link_restart(struct ledger_link *l)
{
    jsErrCode code = 0;

    if (link_is_connected(l) != 1) return LEDGER_AWAY;
    js_DeleteConsumer(l->js, names[LEDGER_JOBS], LEDGER_CONSUMER, NULL, &code);
    l->has_streams = 0;
    return make_streams(l) == NATS_OK ? LEDGER_DONE : LEDGER_AWAY;
}

/* ---- deliveries ---- */

static natsStatus subscribe(struct ledger_link *l)
{
    jsSubOptions o;
    jsErrCode code = 0;
    natsStatus s;

    if (l->sub) return NATS_OK;
    jsSubOptions_Init(&o);
    o.Stream = names[LEDGER_JOBS];
    o.Consumer = LEDGER_CONSUMER;
    s = js_PullSubscribe(&l->sub, l->js, patterns[LEDGER_JOBS], LEDGER_CONSUMER, NULL, &o, &code);
    if (s != NATS_OK) l->has_streams = 0;
    return s;
}

static void pass_msg(natsMsg *msg, void (*each)(void *arg, const struct ledger_msg *m), void *arg)
{
    jsMsgMetaData *meta = NULL;
    struct ledger_msg m = { .subject = natsMsg_GetSubject(msg),
                            .reply = natsMsg_GetReply(msg),
                            .p = natsMsg_GetData(msg),
                            .n = (size_t)natsMsg_GetDataLength(msg) };

    if (natsMsg_GetMetaData(&meta, msg) == NATS_OK) m.n_delivered = meta->NumDelivered;
    jsMsgMetaData_Destroy(meta);
    if (m.subject && m.reply) each(arg, &m);
}

/* One at a time: a second one that arrived after the call has ended would be nobody's for ack_ms. */
static enum ledger_result link_take(struct ledger_link *l, int wait_ms,
                                    void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                                    char *why, size_t n_why)
{
    natsMsgList list = { 0 };
    jsErrCode code = 0;
    natsStatus s;
    int n;

    if (!begin(l, why, n_why)) return LEDGER_AWAY;
    if ((s = subscribe(l)) != NATS_OK) {
        say(why, n_why, "the JetStream consumer", s);
        return LEDGER_AWAY;
    }
    s = natsSubscription_Fetch(&list, l->sub, 1, wait_ms, &code);
    n = list.Count;
    for (int i = 0; i < n; i++) pass_msg(list.Msgs[i], each, arg);
    natsMsgList_Destroy(&list);
    if (n > 0) return LEDGER_DONE;
    if (s == NATS_OK || s == NATS_TIMEOUT) return LEDGER_MISSING;
    say(why, n_why, "taking a job", s);
    drop_sub(l);
    l->has_streams = 0;
    return LEDGER_AWAY;
}

/* Waits for the server's word: after it the job cannot come back. */
static enum ledger_result link_ack(struct ledger_link *l, const char *reply)
{
    natsMsg *msg = NULL;
    natsStatus s;

    if (link_is_connected(l) != 1) return LEDGER_AWAY;
    s = natsConnection_RequestString(&msg, l->nc, reply, "+ACK", WAIT_MS);
    natsMsg_Destroy(msg);
    return s == NATS_OK ? LEDGER_DONE : LEDGER_UNSURE;
}

static enum ledger_result link_extend(struct ledger_link *l, const char *reply)
{
    if (link_is_connected(l) != 1) return LEDGER_AWAY;
    return natsConnection_PublishString(l->nc, reply, "+WPI") == NATS_OK ? LEDGER_DONE
                                                                         : LEDGER_AWAY;
}

static enum ledger_result link_release(struct ledger_link *l, const char *reply, int delay_ms)
{
    char text[64];

    if (link_is_connected(l) != 1) return LEDGER_AWAY;
    snprintf(text, sizeof text, "-NAK {\"delay\": %lld}", (long long)(delay_ms * NS));
    return natsConnection_PublishString(l->nc, reply, delay_ms ? text : "-NAK") == NATS_OK
               ? LEDGER_DONE
               : LEDGER_AWAY;
}

__attribute__((visibility("default")))
const struct ledger_api tern_nats_ledger_2 = { .open = link_open,
                                               .close = link_close,
                                               .is_connected = link_is_connected,
                                               .max_bytes = link_max_bytes,
                                               .add = link_add,
                                               .get = link_get,
                                               .put = link_put,
                                               .erase = link_erase,
                                               .last = link_last,
                                               .remove = link_remove,
                                               .list = link_list,
                                               .count = link_count,
                                               .restart = link_restart,
                                               .take = link_take,
                                               .ack = link_ack,
                                               .extend = link_extend,
                                               .release = link_release };
