/* record.cuh - carrying a record out: the copies' pinned memory, the graphs of steps seen before.
 */
#ifndef TERN_KERNEL_CUDA_RECORD_CUH
#define TERN_KERNEL_CUDA_RECORD_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/graphs.h"
}

#define RECORD_OPS 4096
#define GRAPH_TOKENS 64 /* larger steps keep the device busy longer than launching takes */
#define GRAPH_OPS 16    /* nor are a few operations worth one */
#define MAX_LATE 64
#define MAX_PINNED 16
#define STAGE_BYTES ((size_t)8 << 20)
#define MAX_AHEAD 4 /* parts of a step whose end is known of */

struct cu_late { /* what a get brings to memory that is not pinned */
    void *dst;
    const char *from;
    size_t bytes;
};

struct cu_pinned {
    char *p;
    size_t bytes;
};

struct cu_upload;

struct cu_record {
    struct record rec;
    bool fuse, graphs, profiled;
    bool partial;       /* a part of this step was launched already */
    char *stage, *back; /* pinned, STAGE_BYTES each: for put and get */
    size_t stage_used, back_used;
    struct cu_late late[MAX_LATE];
    int n_late;
    struct cu_pinned pinned[MAX_PINNED];
    int n_pinned;
    struct linear
        *jobs; /* of the record that is being launched: rec.jobs as the kernels take them */
    int at;    /* the operation that is being launched */
    struct graphs cache;
    uint64_t n_replays, n_captures, n_steps;
    /* what is under way since the last wait: it began, its parts ended */
    cudaEvent_t begun, done[MAX_AHEAD];
    int n_parts;
    int n_refused; /* captures that failed */
    bool dead;     /* the device fails for this process from now on */
    struct cu_upload *upload;
};

/* launch.cu: launches every operation of the record that none has absorbed, in order. */
void cu_launch_all(struct cuda *c);

int cu_record_open(struct cuda *c, struct err *e);
void cu_record_close(struct cuda *c);
/* Launches everything recorded. RUN_ROOM: there is no room for more of it; RUN_PART: what comes
 * does not read intermediates of this; RUN_STEP: and it is the end of the step. */
enum cu_run { RUN_ROOM, RUN_PART, RUN_STEP };
void cu_record_run(struct cuda *c, enum cu_run how);
void cu_record_put(struct cuda *c, void *dst, const void *src, size_t bytes);
void cu_record_get(struct cuda *c, void *dst, const void *src, size_t bytes);
/* Launched and done: nothing is recorded or under way afterwards. */
void cu_record_wait(struct cuda *c, enum cu_run how);
/* Until no more than `ahead` of the runs since the last wait are under way. */
void cu_record_pace(struct cuda *c, int ahead);
/* Graphs hold addresses of scratch: gone when that moves. */
void cu_record_forget(struct cuda *c);

int upload_put(struct cuda *c, struct weight *w, struct err *e);
int upload_ready(struct cuda *c, struct err *e);
void upload_drop(struct cuda *c, struct weight *w);
void upload_close(struct cuda *c);

struct cu_profile { /* the first member of profile.cu's own */
    void (*begin)(struct cuda *c, const char *name);
    void (*end)(struct cuda *c);
};
void profile_open(struct cuda *c, bool wanted); /* or where TERN_CUDA_PROFILE says so */
void profile_collect(struct cuda *c);           /* after a sync */
void profile_close(struct cuda *c);
#endif
