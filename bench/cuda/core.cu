/* core.cu - the cost of launches one by one and as a graph, of small copies, and of uploads.
 *
 *     core          a table of microseconds and GB/s */
#include "kernel/cuda/cu.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRY(call)                                                                          \
    do {                                                                                   \
        cudaError_t rc_ = (call);                                                          \
        if (rc_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(rc_)); \
            return 1;                                                                      \
        }                                                                                  \
    } while (0)

enum { N_LAUNCHES = 200, REPEATS = 50 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Each kernel waits for the one before: the cost of a chain of small kernels. */
__global__ void add_one(float *x, int n)
{
    cu_release_next();
    cu_wait_previous();
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n;
         i += (int)(gridDim.x * blockDim.x))
        x[i] += 1.f;
}

static void chain(struct cuda *c, float *x, int n, int blocks)
{
    for (int i = 0; i < N_LAUNCHES; i++)
        cu_launch(c, "add_one", add_one, dim3(blocks), dim3(256), 0, x, n);
}

struct step {
    float *x;
    char *pinned;
    int blocks;
    size_t put, get;
};

static void record(struct cuda *c, const struct step *s)
{
    if (s->put) cudaMemcpyAsync(s->x, s->pinned, s->put, cudaMemcpyHostToDevice, c->stream);
    chain(c, s->x, 4096, s->blocks);
    if (s->get) cudaMemcpyAsync(s->pinned, s->x, s->get, cudaMemcpyDeviceToHost, c->stream);
}

/* Microseconds from the call to the end of sync, of a whole step. */
static int measure(struct cuda *c, const char *what, const struct step *s, bool early)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int cc = c->cc;
    double eager = 1e30, replay = 1e30, t;

    if (!early) c->cc = 0; /* without programmatic dependent launch */
    for (int i = 0; i < REPEATS; i++) {
        t = now_us();
        record(c, s);
        TRY(cudaStreamSynchronize(c->stream));
        t = now_us() - t;
        eager = t < eager ? t : eager;
    }
    TRY(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
    record(c, s);
    TRY(cudaStreamEndCapture(c->stream, &graph));
    t = now_us();
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    double made = now_us() - t;
    for (int i = 0; i < REPEATS; i++) {
        t = now_us();
        TRY(cudaGraphLaunch(exec, c->stream));
        TRY(cudaStreamSynchronize(c->stream));
        t = now_us() - t;
        replay = t < replay ? t : replay;
    }
    printf("%-44s %8.1f %8.1f %8.1f us   %.2f us a launch in a graph\n", what, eager, replay, made,
           replay / N_LAUNCHES);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    c->cc = cc;
    return 0;
}

static int measure_bus(struct cuda *c)
{
    size_t bytes = (size_t)256 << 20;
    char *pinned, *there;
    double t;

    t = now_us();
    TRY(cudaMallocHost((void **)&pinned, bytes));
    printf("pinning 256 MiB: %.1f ms\n", (now_us() - t) / 1e3);
    TRY(cudaMalloc((void **)&there, bytes));
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < 2; i++) {
            t = now_us();
            TRY(way ? cudaMemcpyAsync(pinned, there, bytes, cudaMemcpyDeviceToHost, c->stream)
                    : cudaMemcpyAsync(there, pinned, bytes, cudaMemcpyHostToDevice, c->stream));
            TRY(cudaStreamSynchronize(c->stream));
            if (i)
                printf("%s: %.1f GB/s\n", way ? "device to host" : "host to device",
                       (double)bytes / (now_us() - t) / 1e3);
        }
    t = now_us();
    cudaFree(there);
    TRY(cudaMalloc((void **)&there, (size_t)8 << 30));
    printf("cudaMalloc of 8 GiB: %.1f ms\n", (now_us() - t) / 1e3);
    cudaFree(there);
    cudaFreeHost(pinned);
    return 0;
}

int main(void)
{
    static struct cuda c;
    struct cudaDeviceProp p;
    struct step s = {};
    double t = now_us();
    int bad = 0;

    TRY(cudaFree(NULL));
    printf("first call of CUDA: %.0f ms\n", (now_us() - t) / 1e3);
    TRY(cudaGetDeviceProperties(&p, 0));
    c.cc = p.major * 10 + p.minor;
    c.be.name = "cuda:0";
    TRY(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    TRY(cudaMalloc((void **)&s.x, (size_t)32 << 20));
    TRY(cudaMallocHost((void **)&s.pinned, (size_t)32 << 20));
    printf("%s; %d launches%20s %8s %8s %8s\n", p.name, N_LAUNCHES, "", "eager", "replay",
           "made in");
    for (int early = 0; early < 2; early++)
        for (s.blocks = 1; s.blocks <= 132; s.blocks += 131) {
            char what[64];
            snprintf(what, sizeof what, "%s, %d blocks",
                     early ? "early start" : "one after the other", s.blocks);
            s.put = s.get = 0;
            bad |= measure(&c, what, &s, early);
            snprintf(what, sizeof what, "%s, %d blocks, 4 KB in, 128 KB out",
                     early ? "early start" : "one after the other", s.blocks);
            s.put = 4096, s.get = 131072;
            bad |= measure(&c, what, &s, early);
        }
    bad |= measure_bus(&c);
    if (c.rc != OK) printf("%s\n", c.msg);
    return bad;
}
