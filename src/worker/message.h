/* message.h - the JSON payloads of control frames, as C structs.
 *
 * Each message has a write and a read function over one table of fields (message.c). Readers
 * ignore keys they do not know, give missing optional fields their zero, and refuse a wrong type, a
 * number out of range, a text that is too long and a missing required key with E_FORMAT, which
 * names frame and key. Texts that are read are NUL-terminated, hold no NUL and live in the arena
 * that the caller passes; those that are written are borrowed. A write function appends to the buf,
 * which remembers a failed allocation (buf_check). Any thread may call. */
#ifndef TERN_WORKER_MESSAGE_H
#define TERN_WORKER_MESSAGE_H

#include "base/buf.h"
#include "worker/frame.h"

struct api_end;
struct arena;

enum { MSG_DEVICES = 8, MSG_HEADERS = 32, MSG_NONCE_HEX = 64, MSG_MAC_HEX = 64 };

struct msg_hello {
    const char *role; /* "server" or "worker" */
    int64_t version_min, version_max;
    const char *build; /* "tern 0.1.0 (278195c)" */
    const char *name;  /* of the worker's model, for logs; "" */
    const char *nonce; /* 32 random bytes as hexadecimal digits */
    int64_t window;    /* bytes of BODY or DATA that the sender takes per stream before a CREDIT */
    int64_t max_streams; /* open at once; 0: the sender opens streams, it takes none */
};

struct msg_welcome {
    int64_t version; /* that the sender will speak: the highest both know */
    const char *mac; /* see docs/protocol.md: HMAC-SHA256 with the token, hexadecimal digits */
};

struct msg_error {
    const char *code; /* "version", "token", "role", "format", "flow", "limit", "state", "silent" */
    const char *message;
    uint64_t offset; /* of the frame that was refused; 0: none */
};

/* PING and PONG. The numbers are those of the sender; the server sends zeros. */
struct msg_beat {
    uint64_t n;               /* of the PING; a PONG repeats it */
    uint64_t steps;           /* the engine has done */
    int64_t running, waiting; /* requests */
    int64_t step_ms;          /* age of the step under way; 0: none */
    int64_t calls;            /* streams in work */
    int64_t admitted;         /* requests that count for max_requests of READY */
};

struct msg_stop {
    const char *why; /* "unload", "shutdown", "evicted": for the log */
};

/* Bytes of one device. */
struct msg_device {
    const char *name; /* "cpu", "cuda:0" */
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
};

/* struct sizes_room: memory for default sizes. */
struct msg_room {
    uint64_t host_bytes, limit_bytes, device_bytes, later_bytes;
    double share, share_before;
};

struct msg_plan {
    struct msg_device devices[MSG_DEVICES]; /* the first is the host */
    int n_devices;
    uint64_t mapped_bytes;    /* weights of the host that stay in their file */
    int64_t n_ctx, kv_tokens; /* as planned */
    bool kv_given;            /* the size of the KV cache was given */
    uint64_t lack_bytes;      /* that the second device has not for all layers */
    const char *refused;      /* the model does not load without them: why; "": it does */
};

struct msg_admit {
    uint64_t budget_bytes; /* that the worker may take in all; 0: what it planned */
    int64_t kv_tokens;     /* of the KV cache; 0: as planned */
    bool fill_kv;          /* the KV cache is taken before READY, not when it is used */
};

struct msg_sleep {
    uint64_t park_bytes; /* of KV blocks that may be kept in memory; 0: none */
};

struct msg_asleep {
    int64_t parked_blocks; /* of the KV cache, that come back with WAKE */
    uint64_t parked_bytes; /* of them that lie in memory, not in a file */
};

/* REFUSE and FAILED. */
struct msg_failure {
    const char *code; /* err_name: "memory", "format" */
    const char *message;
    int64_t retry_ms; /* 0: unknown or never */
};

struct msg_progress {
    const char *stage; /* "plan", "weights", "warm" */
    int64_t percent;   /* 0 to 100, of the whole load */
};

/* Facts of the model, for GET /v1/models, /status, the log and the relay. */
struct msg_ready {
    const char *name, *arch, *task, *dtype, *devices, *kv_type; /* as in struct engine_info */
    int64_t n_ctx, n_vocab, n_vec, n_labels;
    int64_t n_blocks, block_tokens, max_seqs, max_batch, max_requests;
    int64_t n_threads;
    uint64_t n_params, weight_bytes, kv_bytes, scratch_bytes;
    int64_t created; /* seconds since 1970 */
    double load_ms, warm_ms;
    bool chat;                             /* the model has a chat template */
    const char *digest;                    /* of the model's bytes; "": not known */
    struct msg_device device[MSG_DEVICES]; /* what was taken */
    int n_devices;
    const char *sandbox; /* sandbox_info.text */
    struct str more; /* a JSON object as text with further facts, passed on as it is; empty: none */
};

struct msg_pair {
    const char *name, *value;
};

struct msg_request {
    const char *method, *path, *query;    /* path: percent-decoded; query: not decoded */
    struct msg_pair headers[MSG_HEADERS]; /* those that matter; names in lower case */
    int n_headers;
    struct { /* struct api_who */
        const char *name;
        int64_t index, priority_max;
        bool admin;
    } tenant;
    const char *id;      /* correlation id */
    const char *peer;    /* of the client, for logs */
    int64_t deadline_ms; /* left when the frame is sent; 0: none */
    int64_t age_ms;      /* since the first byte of the request arrived */
    int64_t body_bytes;  /* of all BODY frames together */
    int64_t retry;       /* 1: a worker that died had it before */
};

struct msg_reply {
    int64_t status;
    const char *type; /* Content-Type */
    bool streamed;
    int64_t body_bytes; /* of a reply that is not streamed */
    struct msg_pair headers[MSG_HEADERS];
    int n_headers;
};

enum msg_why { MSG_GONE, MSG_ASKED, MSG_DEADLINE, MSG_SHUTDOWN, N_MSG_WHY };
struct msg_cancel {
    int why; /* enum msg_why: "gone", "asked", "deadline", "shutdown" */
};

#define MSG_DECLARE(name)                                               \
    void msg_write_##name(struct buf *out, const struct msg_##name *m); \
    int msg_read_##name(struct msg_##name *m, struct arena *a, struct str payload, struct err *e)
MSG_DECLARE(hello);
MSG_DECLARE(welcome);
MSG_DECLARE(error);
MSG_DECLARE(beat);
MSG_DECLARE(stop);
MSG_DECLARE(room);
MSG_DECLARE(plan);
MSG_DECLARE(admit);
MSG_DECLARE(sleep);
MSG_DECLARE(asleep);
MSG_DECLARE(failure);
MSG_DECLARE(progress);
MSG_DECLARE(ready);
MSG_DECLARE(request);
MSG_DECLARE(reply);
MSG_DECLARE(cancel);
#undef MSG_DECLARE

/* END: all of struct api_end but who, route and peer, which the server knows. */
void msg_write_end(struct buf *out, const struct api_end *m);
int msg_read_end(struct api_end *m, struct arena *a, struct str payload, struct err *e);

/* The value of a header of a REQUEST or REPLY; NULL: absent. name in lower case. */
const char *msg_header(const struct msg_pair *headers, int n, const char *name);
const char *msg_why_name(int why);
#endif
