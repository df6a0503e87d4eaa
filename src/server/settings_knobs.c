/* settings_knobs.c - the table of settings. A row gives the flag, the variable and the YAML key at
 * once; the help texts are those of tern serve --help. Times are in ms, sizes in bytes or tokens. */
#include "server/settings.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct settings, field)
#define KI (1024.0)
#define MI (1024.0 * KI)
#define GI (1024.0 * MI)
#define MINUTE 60e3
#define DAY (24 * 60 * MINUTE)

/* clang-format off */
const struct knob settings_knobs[] = {
    { .group = "models", .name = "model", .alt = "-m|--models", .kind = KNOB_LIST, .at = AT(models),
      .used_by = USED_BY_BOTH,
      .help = "GGUF or ONNX file, or Hugging Face folder; repeat it for several models, the first is "
              "the default" },
    { .name = "alias", .alt = "-a|--served-model-name", .kind = KNOB_LIST, .at = AT(aliases),
      .used_by = USED_BY_BOTH,
      .help = "name of a model in the API, in the order of the models; default: its file or folder name" },
    { .name = "models-dir", .kind = KNOB_TEXT, .at = AT(models_dir), .dflt = "",
      .help = "folder whose models are served as well: GGUF and ONNX files and Hugging Face folders up to "
              "two levels below; they are loaded on demand, nothing outside the folder is opened" },
    { .name = "preload", .kind = KNOB_TEXT, .at = AT(preload), .dflt = "",
      .help = "names of models of the folder that are loaded at the start, separated by commas; those of -m "
              "always are" },
    { .name = "keep-alive", .kind = KNOB_TIME, .at = AT(keep_alive_ms), .least = 0, .most = 366 * DAY,
      .words = "none|forever", .dflt = "5m",
      .help = "idle time after which a model of the folder is unloaded; 0 or none: at once, -1 or forever: "
              "never. Models of -m stay loaded" },
    { .name = "models-max", .kind = KNOB_INT, .at = AT(models_max), .least = 0, .most = 1000, .dflt = "0",
      .help = "models loaded at once; 0: as many as memory allows" },
    { .name = "read-ahead", .kind = KNOB_BOOL, .at = AT(read_ahead), .dflt = "true",
      .help = "read the file of the model that is probably asked for next into memory that nothing uses; see "
              "also the header X-Tern-Hint" },
    { .name = "residence", .kind = KNOB_TIME, .at = AT(residence_ms), .least = 1, .most = DAY, .dflt = "2s",
      .help = "least time that a model stays loaded before it is unloaded for another one" },
    { .name = "patience", .kind = KNOB_TIME, .at = AT(patience_ms), .least = 1, .most = DAY, .dflt = "5s",
      .help = "time that requests wait for a model before models in use take no more requests, to make "
              "room" },
    { .name = "isolate", .kind = KNOB_BOOL, .at = AT(isolate), .dflt = "false",
      .help = "run every model in a process of its own, which may crash without the server" },
    { .name = "sandbox", .kind = KNOB_BOOL, .at = AT(sandbox), .dflt = "true",
      .help = "confine the processes of --isolate: no new files, sockets and programs; --no-sandbox is for "
              "debugging" },
    { .name = "load-timeout", .kind = KNOB_TIME, .at = AT(load_timeout_ms), .least = 0, .most = 7 * DAY,
      .dflt = "15m",
      .help = "time without progress of the load of an isolated model after which its process is killed; "
              "0: no limit" },
    { .name = "worker-silence", .kind = KNOB_TIME, .at = AT(worker_silence_ms), .least = 1000, .most = DAY,
      .dflt = "10s",
      .help = "time without a heartbeat after which the process of an isolated model is killed" },
    { .name = "verify-manifest", .kind = KNOB_CHOICE, .at = AT(verify_manifest),
      .choices = "off|warn|require", .dflt = "off",
      .help = "compare a model's files with its manifest (sizes and SHA-256, see tern manifest) before it is "
              "loaded: warn logs a difference, require refuses the model, also one without a manifest" },
    { .name = "model-key-file", .kind = KNOB_TEXT, .at = AT(model_key_file), .dflt = "",
      .help = "file with the key of encrypted models (tern encrypt): 64 hex digits per line, or 32 bytes; it "
              "is read when a model is loaded" },
    { .name = "model-key-command", .kind = KNOB_TEXT, .at = AT(model_key_command), .dflt = "",
      .help = "shell command that prints the key instead; it runs in the server for each load, for at most a "
              "minute" },
    { .name = "chat-template", .alt = "--chat-template-file", .kind = KNOB_TEXT, .at = AT(chat_template),
      .dflt = "",
      .help = "file with a Jinja chat template that replaces the templates of the models" },
    { .name = "rerank", .kind = KNOB_CHOICE, .at = AT(rerank), .choices = "auto|generative", .dflt = "auto",
      .help = "models that rank documents: auto: those whose files say so; generative: also every model that "
              "generates text, by the logits of yes and no behind a question about the document" },
    { .name = "config", .kind = KNOB_TEXT, .at = AT(config), .dflt = "", .used_by = USED_BY_BOTH,
      .help = "YAML file with settings, by the names of these flags; flags and variables override it" },

    { .group = "listening", .name = "host", .kind = KNOB_TEXT, .at = AT(host), .dflt = "127.0.0.1",
      .help = "address to listen on; empty: no TCP. Other addresses than loopback require an API key" },
    { .name = "port", .kind = KNOB_INT, .at = AT(port), .least = 0, .most = 65535, .dflt = "8080",
      .help = "TCP port; 0: any free port, which is then printed" },
    { .name = "socket", .alt = "--uds", .kind = KNOB_TEXT, .at = AT(socket), .dflt = "",
      .help = "path of a Unix socket to listen on as well; only its owner can connect" },
    { .name = "tls-cert", .alt = "--ssl-cert-file|--ssl-certfile", .kind = KNOB_TEXT,
      .at = AT(tls_cert), .dflt = "",
      .help = "PEM file with the certificate chain; enables TLS on the TCP port" },
    { .name = "tls-key", .alt = "--ssl-key-file|--ssl-keyfile", .kind = KNOB_TEXT, .at = AT(tls_key),
      .dflt = "",
      .help = "PEM file with the private key of the certificate" },
    { .name = "cors", .kind = KNOB_BOOL, .at = AT(cors), .dflt = "false",
      .help = "allow web pages of other origins to use the API" },
    { .name = "cors-origins", .kind = KNOB_TEXT, .at = AT(cors_origins), .dflt = "",
      .help = "the same for pages of these origins only, such as https://app.example, separated by commas" },
    { .name = "allowed-hosts", .kind = KNOB_TEXT, .at = AT(allowed_hosts), .dflt = "",
      .help = "names in URLs of this server, besides localhost, loopback addresses and --host, separated by "
              "commas; *: any. Checked if there is no API key, or if set" },
    { .name = "max-connections", .kind = KNOB_INT, .at = AT(max_connections), .least = 1, .most = 1e6,
      .dflt = "1024",
      .help = "open connections, as far as the limit of open files allows; above it idle ones are closed, "
              "then new ones are answered 503" },
    { .name = "max-body", .kind = KNOB_SIZE, .at = AT(max_body), .least = KI, .most = 4 * GI,
      .dflt = "16M",
      .help = "largest request body in bytes" },
    { .name = "max-bodies", .kind = KNOB_SIZE, .at = AT(max_bodies), .least = KI, .most = 1024 * GI,
      .dflt = "256M",
      .help = "bytes of all request bodies that are held at a time; further requests are answered 503" },
    { .name = "max-header", .kind = KNOB_SIZE, .at = AT(max_header), .least = KI, .most = 16 * MI,
      .dflt = "64K",
      .help = "largest request line with headers, in bytes" },
    { .name = "max-unread", .kind = KNOB_SIZE, .at = AT(max_unread), .least = 4 * KI, .most = GI,
      .dflt = "1M",
      .help = "bytes of a stream that a slow client may leave unread before it is disconnected" },
    { .name = "header-timeout", .kind = KNOB_TIME, .at = AT(header_timeout_ms), .least = 100,
      .most = DAY, .dflt = "10s",
      .help = "time from the first byte of a request to the end of its headers" },
    { .name = "body-timeout", .kind = KNOB_TIME, .at = AT(body_timeout_ms), .least = 100, .most = DAY,
      .dflt = "60s",
      .help = "time from the end of the headers to the end of the body" },
    { .name = "idle-timeout", .kind = KNOB_TIME, .at = AT(idle_timeout_ms), .least = 100, .most = DAY,
      .dflt = "60s",
      .help = "time a keep-alive connection may be without a request" },
    { .name = "write-timeout", .kind = KNOB_TIME, .at = AT(write_timeout_ms), .least = 100,
      .most = DAY, .dflt = "30s",
      .help = "time a client may read nothing of a reply" },

    { .group = "keys and tenants", .name = "api-key", .kind = KNOB_TEXT, .at = AT(api_key), .dflt = "",
      .secret = true,
      .help = "API key that requests must carry (several: separated by commas); a file or TERN_API_KEY "
              "is safer" },
    { .name = "api-key-file", .kind = KNOB_TEXT, .at = AT(api_key_file), .dflt = "",
      .help = "file with one key per line: KEY [name=N] [rate=N/min] [concurrency=N] [priority=N] "
              "[admin]" },
    { .name = "allow-open", .kind = KNOB_BOOL, .at = AT(allow_open), .dflt = "false",
      .help = "listen on other addresses than loopback without any API key" },
    { .name = "rate-per-min", .kind = KNOB_INT, .at = AT(rate_per_min), .least = 0, .most = 1e9,
      .dflt = "0",
      .help = "requests per minute of a tenant whose key sets no rate; 0: no limit",
      .reload = true },
    { .name = "concurrency", .kind = KNOB_INT, .at = AT(concurrency), .least = 0, .most = 1e6,
      .dflt = "0",
      .help = "concurrent requests of a tenant whose key sets no limit; 0: no limit", .reload = true },
    { .name = "max-tenant-bodies", .kind = KNOB_SIZE, .at = AT(max_tenant_bodies), .least = 0,
      .most = 1024 * GI, .dflt = "0",
      .help = "bytes of request bodies of one tenant that are held at a time, then 429; 0: half of "
              "max-bodies where there are keys", .reload = true },

    { .group = "engine", .name = "device", .kind = KNOB_TEXT, .at = AT(device), .dflt = "cpu",
      .help = "device that computes: cpu, cuda, cuda:1" },
    { .name = "isa", .kind = KNOB_CHOICE, .at = AT(isa), .choices = "auto|ref|avx2|avxvnni|avx512|amx|neon",
      .dflt = "auto",
      .help = "CPU kernels of this instruction set; auto: the best of this machine" },
    { .name = "numa", .kind = KNOB_TEXT, .at = AT(numa), .dflt = "auto",
      .help = "memory nodes of CPU threads and weights: auto (all, if there are several), off, spread, or "
              "the number of one" },
    { .name = "gpu-layers", .alt = "-ngl|--n-gpu-layers", .kind = KNOB_INT, .at = AT(gpu_layers), .least = -1,
      .most = 65536, .dflt = "-1",
      .help = "number of last layers of a model on the GPU, the rest runs on the CPU; -1: as many as fit" },
    { .name = "vram-only", .kind = KNOB_BOOL, .at = AT(vram_only), .dflt = "false",
      .help = "refuse a model of which not all layers fit on the GPU" },
    { .name = "cpu-moe", .alt = "-cmoe", .kind = KNOB_BOOL, .at = AT(cpu_moe), .dflt = "false",
      .help = "routed experts of all layers on the CPU, the rest of a model on the GPU" },
    { .name = "n-cpu-moe", .alt = "-ncmoe", .kind = KNOB_INT, .at = AT(n_cpu_moe), .least = 0, .most = 65536,
      .dflt = "0",
      .help = "routed experts of the first so many layers on the CPU; 0: none" },
    { .name = "place", .alt = "-ot|--override-tensor", .kind = KNOB_TEXT, .at = AT(place), .dflt = "",
      .help = "routed experts by tensor name: PATTERN=cpu,PATTERN=gpu; the first match decides" },
    { .name = "threads", .alt = "-t", .kind = KNOB_INT, .at = AT(threads), .least = 0, .most = 1024,
      .dflt = "0",
      .help = "CPU threads of each model; 0: one per core" },
    { .name = "tp", .alt = "--tensor-parallel-size", .kind = KNOB_INT, .at = AT(tp), .least = 1, .most = 64,
      .dflt = "1",
      .help = "divide every layer of a model among this many processes, its members; see docs/gang.md" },
    { .name = "pp", .alt = "--pipeline-parallel-size", .kind = KNOB_INT, .at = AT(pp), .least = 1,
      .most = 64, .dflt = "1",
      .help = "divide the layers of a model among this many stages, each of tp members" },
    { .name = "ep", .kind = KNOB_BOOL, .at = AT(ep), .dflt = "false",
      .help = "divide whole experts among the members of tp instead of cutting each" },
    { .name = "split", .kind = KNOB_TEXT, .at = AT(split), .dflt = "",
      .help = "parts of the members, or without tp of the stages: auto, even or 3,1; default: even where "
              "members are alike, else auto" },
    { .name = "hosts", .kind = KNOB_TEXT, .at = AT(hosts), .dflt = "",
      .help = "hosts of the members, the first this one: a,b; default: all members on this machine" },
    { .name = "transport", .kind = KNOB_CHOICE, .at = AT(transport), .choices = "auto|shm|tcp|mpi",
      .dflt = "auto",
      .help = "between members: shared memory, TCP, or the processes of an MPI job; auto: shm, with hosts "
              "tcp" },
    { .name = "wire", .kind = KNOB_CHOICE, .at = AT(wire), .choices = "f32|q8", .dflt = "f32",
      .help = "form of sums between members; q8: 8 bits, for slow networks" },
    { .name = "devices", .kind = KNOB_TEXT, .at = AT(devices), .dflt = "",
      .help = "device of each member, or one of all: cuda,cpu; default: cpu" },
    { .name = "comm", .kind = KNOB_CHOICE, .at = AT(comm), .choices = "auto|host|ipc|nccl", .dflt = "auto",
      .help = "how sums of members on GPUs travel: through the host, over CUDA IPC, by NCCL; auto: the best "
              "that works" },
    { .name = "agent", .kind = KNOB_TEXT, .at = AT(agent), .dflt = "ssh -o BatchMode=yes %h",
      .help = "command that runs another on the host %h, to start members there" },
    { .name = "gang-listen", .kind = KNOB_TEXT, .at = AT(gang_listen), .dflt = "",
      .help = "address at which members reach their leader; default: 127.0.0.1, with hosts all addresses" },
    { .name = "remote-tern", .kind = KNOB_TEXT, .at = AT(remote_tern), .dflt = "tern",
      .help = "tern on the other hosts" },
    { .name = "step-timeout", .kind = KNOB_TIME, .at = AT(step_timeout_ms), .least = 1000, .most = DAY,
      .dflt = "60s",
      .help = "longest wait of a member for another in a step; then the gang is ended and started again" },
    { .name = "ctx", .alt = "-c|--ctx-size|--max-model-len", .kind = KNOB_SIZE, .at = AT(ctx),
      .least = 0, .most = 16 * MI, .dflt = "0",
      .help = "context of a sequence in tokens, prompt and completion; 0: as trained, as far as memory "
              "allows" },
    { .name = "max-seqs", .alt = "-np|--parallel|--max-num-seqs", .kind = KNOB_INT, .at = AT(max_seqs),
      .least = 0, .most = 4096, .dflt = "0",
      .help = "sequences that run at once; each has the full context. 0: 16, on a GPU up to 256" },
    { .name = "max-batch", .alt = "-b|--batch-size|--max-num-batched-tokens", .kind = KNOB_INT,
      .at = AT(max_batch), .least = 0, .most = 65536, .dflt = "0",
      .help = "tokens of a step, of prompts and completions together; 0: 512, on a GPU 2048" },
    { .name = "kv-type", .alt = "-ctk|--cache-type-k|--kv-cache-dtype", .kind = KNOB_CHOICE,
      .at = AT(kv_type), .choices = "auto|f16|bf16|q8_0|f8|fp8|f32", .dflt = "auto",
      .help = "data type of the KV cache; auto: f16. q8_0 and f8 (E4M3; also fp8) take half the memory" },
    { .name = "kv-tokens", .kind = KNOB_SIZE, .at = AT(kv_tokens), .least = 0, .most = GI, .dflt = "0",
      .help = "capacity of the KV cache of a model in tokens; 0: a share of the free memory of the device" },
    { .name = "kv-overcommit", .kind = KNOB_FLOAT, .at = AT(kv_overcommit), .least = 1, .most = 1000,
      .dflt = "8",
      .help = "worst-case KV use of all admitted requests, as a multiple of the cache; above it requests "
              "are refused" },
    { .name = "max-requests", .kind = KNOB_INT, .at = AT(max_requests), .least = 0, .most = 1e6,
      .dflt = "0",
      .help = "requests waiting and running; further ones are answered 429. 0: 16 times max-seqs" },
    { .name = "max-queue-tokens", .kind = KNOB_SIZE, .at = AT(max_queue_tokens), .least = 0,
      .most = GI, .dflt = "0",
      .help = "prompt tokens of all waiting requests; 0: 64 contexts of up to 4096 tokens, or 4 for each of "
              "max-seqs" },
    { .name = "step-ms", .kind = KNOB_TIME, .at = AT(step_ms), .least = 1, .most = MINUTE,
      .dflt = "100",
      .help = "target time of a step that processes prompt tokens" },
    { .name = "stretch", .kind = KNOB_FLOAT, .at = AT(stretch), .least = 1, .most = 1000,
      .dflt = "2.5",
      .help = "factor by which prompt tokens may prolong a step of running completions" },
    { .name = "age-ms", .kind = KNOB_TIME, .at = AT(age_ms), .least = 1, .most = DAY, .dflt = "1000",
      .help = "waiting time that raises the priority of a request by one" },
    { .name = "prefix-cache", .alt = "--enable-prefix-caching|--cache-prompt", .kind = KNOB_BOOL,
      .at = AT(prefix_cache), .dflt = "true",
      .help = "share the KV cache between prompts with the same beginning" },
    { .name = "prefix-scope", .kind = KNOB_CHOICE, .at = AT(prefix_scope), .choices = "server|tenant",
      .dflt = "server",
      .help = "who shares prefixes: all requests, or only those of one tenant" },
    { .name = "park", .kind = KNOB_CHOICE, .at = AT(park), .choices = "off|memory|file", .dflt = "off",
      .help = "keep cached prefixes of models that are unloaded or sleep: in memory, or in files, which also "
              "outlive the server" },
    { .name = "park-dir", .kind = KNOB_TEXT, .at = AT(park_dir), .dflt = "",
      .help = "folder for the files of --park file; it is made if it is not there" },
    { .name = "park-limit", .kind = KNOB_SIZE, .at = AT(park_limit), .least = 0, .most = 1024 * 1024 * GI,
      .dflt = "1G",
      .help = "bytes of all parked prefixes; those of the model that was used longest ago are dropped" },
    { .name = "memory-limit", .kind = KNOB_SIZE, .at = AT(memory_limit), .least = 0,
      .most = 1024 * 1024 * GI, .words = "none|auto", .dflt = "auto",
      .help = "host memory of weights, KV cache and scratch of all models; auto: what the machine, the "
              "cgroup and the limits of the process have; none or 0: no limit. A list such as "
              "cuda=40G,cpu=8G also sets device-memory-limit" },
    { .name = "device-memory-limit", .kind = KNOB_TEXT, .at = AT(device_memory_limit), .dflt = "",
      .help = "the same for GPUs, by device: cuda=40G (each), cuda:1=20G; without it what a GPU has free" },
    { .name = "allow-nan", .kind = KNOB_BOOL, .at = AT(allow_nan), .dflt = "false",
      .help = "serve models whose weights contain NaN or infinity; otherwise they are refused" },
    { .name = "warm", .alt = "--warmup", .kind = KNOB_BOOL, .at = AT(warm), .dflt = "true",
      .help = "run a short request before a model counts as ready" },

    { .group = "requests", .name = "max-tokens-default", .alt = "-n|--predict|--n-predict",
      .kind = KNOB_SIZE, .at = AT(max_tokens_default), .least = 0, .most = 16 * MI, .dflt = "0",
      .help = "max_tokens of requests that give none; 0: the rest of the context" },
    { .name = "max-choices", .kind = KNOB_INT, .at = AT(max_choices), .least = 1, .most = 128,
      .dflt = "16",
      .help = "largest n of a request" },
    { .name = "deadline-ms", .kind = KNOB_TIME, .at = AT(deadline_ms), .least = 0, .most = DAY,
      .dflt = "0",
      .help = "deadline of requests that give none; 0: none" },
    { .name = "response-store", .kind = KNOB_SIZE, .at = AT(response_store), .least = 0, .most = 64 * GI,
      .dflt = "64M",
      .help = "bytes of answers of /v1/responses that are kept in memory for previous_response_id, the "
              "oldest are dropped first; 0: none" },
    { .name = "request-threads", .kind = KNOB_INT, .at = AT(request_threads), .least = 2, .most = 256,
      .dflt = "2",
      .help = "threads that parse bodies, render templates and tokenize; half of them for bodies of more "
              "than 32 KiB" },
    { .name = "request-queue", .kind = KNOB_INT, .at = AT(request_queue), .least = 1, .most = 1e6,
      .dflt = "4096",
      .help = "requests that may wait for such a thread, half of them of one tenant; further ones are "
              "answered 429" },
    { .name = "max-watchers", .kind = KNOB_INT, .at = AT(max_watchers), .least = 1, .most = 1e6,
      .dflt = "64",
      .help = "clients that may watch the models (GET /models/sse) at a time; further ones are answered "
              "503" },
    { .name = "ping-ms", .kind = KNOB_TIME, .at = AT(ping_ms), .least = 100, .most = DAY,
      .dflt = "15000",
      .help = "time without output after which a comment is sent into a stream" },

    { .group = "files and batches", .name = "data-dir", .kind = KNOB_TEXT, .at = AT(data_dir), .dflt = "",
      .used_by = USED_BY_BOTH,
      .help = "folder for files, batches and durable requests; made when first used. Default: "
              "~/.local/state/tern/HOST-PORT ($XDG_STATE_HOME). Of a gateway: for uploads on their way to "
              "NATS; default: $TMPDIR or /var/tmp" },
    { .name = "max-file", .kind = KNOB_SIZE, .at = AT(max_file), .least = KI, .most = 1024 * GI,
      .dflt = "512M",
      .used_by = USED_BY_BOTH,
      .help = "largest uploaded file in bytes" },
    { .name = "max-batch-lines", .kind = KNOB_INT, .at = AT(max_batch_lines), .least = 1, .most = 1e8,
      .dflt = "50000",
      .used_by = USED_BY_BOTH,
      .help = "lines of a batch" },
    { .name = "batch-inflight", .kind = KNOB_INT, .at = AT(batch_inflight), .least = 0, .most = 4096,
      .dflt = "0",
      .used_by = USED_BY_BOTH,
      .help = "lines of batches that run at once while there are no other requests; 0: half of max-seqs. "
              "Of a gateway: for each worker, 0: 8" },
    { .name = "batch-inflight-busy", .kind = KNOB_INT, .at = AT(batch_inflight_busy), .least = 0,
      .most = 4096, .dflt = "1",
      .used_by = USED_BY_BOTH,
      .help = "lines that begin beside running requests; none does while one waits" },
    { .name = "retention", .kind = KNOB_TIME, .at = AT(retention_ms), .least = 0, .most = 3660 * DAY,
      .dflt = "720h",
      .used_by = USED_BY_BOTH,
      .help = "time after which files, results and ended batches are removed; 0: never" },
    { .name = "tenant-files", .kind = KNOB_SIZE, .at = AT(tenant_files), .least = 0,
      .most = 1024 * 1024 * GI, .dflt = "8G",
      .used_by = USED_BY_BOTH,
      .help = "bytes of all files of a tenant; further uploads are answered 429. 0: no limit" },
    { .name = "tenant-batches", .kind = KNOB_INT, .at = AT(tenant_batches), .least = 0, .most = 1e6,
      .dflt = "64",
      .used_by = USED_BY_BOTH,
      .help = "batches of a tenant that have not ended; 0: no limit" },
    { .name = "tenant-jobs", .kind = KNOB_INT, .at = AT(tenant_jobs), .least = 0, .most = 1e8,
      .dflt = "100000",
      .help = "lines and durable requests of a tenant without an answer, for another durable request to be "
              "accepted; 0: no limit" },

    { .group = "life", .name = "drain-timeout", .alt = "--shutdown-timeout", .kind = KNOB_TIME,
      .at = AT(drain_timeout_ms), .least = 0, .most = DAY, .dflt = "30s", .used_by = USED_BY_BOTH,
      .help = "time that running requests have to end after SIGTERM", .reload = true },
    { .name = "ready", .kind = KNOB_CHOICE, .at = AT(ready), .choices = "all|any", .dflt = "all",
      .help = "GET /ready is 200 when all models are ready, or when any is; /ready?model=NAME asks for one",
      .reload = true },
    { .name = "watchdog", .kind = KNOB_TIME, .at = AT(watchdog_ms), .least = 0, .most = DAY,
      .dflt = "30s",
      .help = "time without progress of an engine after which the server is not ready; 0: never",
      .reload = true },

    { .group = "cluster", .name = "cluster-key", .kind = KNOB_TEXT, .at = AT(cluster_key), .dflt = "",
      .help = "secret that gateways and their workers share: a worker believes a gateway that has it who "
              "sends a request. Without one, a worker that has no API keys believes every gateway",
      .used_by = USED_BY_BOTH, .secret = true },
    { .name = "nats", .kind = KNOB_TEXT, .at = AT(nats), .dflt = "", .used_by = USED_BY_BOTH,
      .help = "nats://host:port of a NATS server with JetStream: a worker registers there, a gateway finds "
              "its workers there and keeps durable requests there" },
    { .name = "advertise", .kind = KNOB_TEXT, .at = AT(advertise), .dflt = "",
      .help = "URL under which gateways reach this worker; default: http://HOST:PORT" },
    { .name = "peers", .kind = KNOB_TEXT, .at = AT(peers), .dflt = "", .used_by = USED_BY_GATEWAY,
      .help = "URLs of the workers of tern gateway, separated by commas, each with an optional weight: "
              "'http://a:8080, http://b:8080 weight=2'" },
    { .name = "peer-ca", .kind = KNOB_TEXT, .at = AT(peer_ca), .dflt = "", .used_by = USED_BY_GATEWAY,
      .help = "PEM file with the certificates to trust of workers with https URLs; default: the system's" },
    { .name = "policy", .kind = KNOB_CHOICE, .at = AT(policy), .choices = "prefix|least|weighted|round-robin",
      .dflt = "prefix", .used_by = USED_BY_GATEWAY,
      .help = "how tern gateway chooses a worker: by the prefix it has computed while the load is balanced, "
              "by tokens outstanding, in turns by weight, or in turns" },
    { .name = "policy-script", .kind = KNOB_TEXT, .at = AT(policy_script), .dflt = "",
      .used_by = USED_BY_GATEWAY,
      .help = "Lua 5.4 script whose function place(request, workers) chooses the worker, in 50 ms and 8 MiB "
              "at most; where it fails, --policy chooses" },
    { .name = "heartbeat-ms", .kind = KNOB_TIME, .at = AT(beat_ms), .least = 5, .most = MINUTE, .dflt = "25",
      .used_by = USED_BY_GATEWAY,
      .help = "time between two signs of life that tern gateway asks a worker for" },
    { .name = "detect-ms", .kind = KNOB_TIME, .at = AT(detect_ms), .least = 10, .most = MINUTE, .dflt = "90",
      .used_by = USED_BY_GATEWAY,
      .help = "silence after which a worker gets no new requests; longer where its replies usually take "
              "long" },
    { .name = "stall-ms", .kind = KNOB_TIME, .at = AT(stall_ms), .least = 10, .most = 60 * MINUTE,
      .dflt = "400", .used_by = USED_BY_GATEWAY,
      .help = "silence after which requests and streams of a worker move to another one" },
    { .name = "replicas-min", .kind = KNOB_INT, .at = AT(replicas_min), .least = 0, .most = 512,
      .dflt = "0", .used_by = USED_BY_GATEWAY,
      .help = "workers that tern gateway lets load each model in advance, where they have room; 0: none" },
    { .name = "replicas-max", .kind = KNOB_INT, .at = AT(replicas_max), .least = 0, .most = 512,
      .dflt = "0", .used_by = USED_BY_GATEWAY,
      .help = "workers that tern gateway lets load a model at most, one for each 8 requests; 0: all" },
    { .name = "replica-idle", .kind = KNOB_TIME, .at = AT(replica_idle_ms), .least = 0, .most = 366 * DAY,
      .dflt = "60s", .used_by = USED_BY_GATEWAY,
      .help = "time after which tern gateway unloads a replica that requests do not need; 0: never" },

    { .group = "logs and metrics", .name = "log-level", .kind = KNOB_CHOICE, .at = AT(log_level),
      .choices = "debug|info|warn|error", .dflt = "info",
      .help = "lowest level that is logged", .reload = true },
    { .name = "log-format", .kind = KNOB_CHOICE, .at = AT(log_format), .choices = "text|json",
      .dflt = "text",
      .help = "format of log lines on stderr" },
    { .name = "access-log", .kind = KNOB_BOOL, .at = AT(access_log), .dflt = "true",
      .help = "log one line per request, at level info", .reload = true },
    { .name = "log-prompts", .kind = KNOB_BOOL, .at = AT(log_prompts), .dflt = "false",
      .help = "log the beginning of each prompt in the access log" },
    { .name = "metrics-compat", .kind = KNOB_SET, .at = AT(metrics_compat), .choices = "vllm|llamacpp",
      .dflt = "",
      .help = "repeat the metrics under the names of other servers" },
    { .name = NULL }
};
/* clang-format on */

/* Settings of the groups that every server has, and the rows that say so. */
bool knob_is_of_gateway(const struct knob *k)
{
    static const char *const groups[] = { "listening", "keys and tenants", "logs and metrics" };
    const struct knob *first = k;

    if (k->used_by != USED_BY_SERVE) return true;
    while (!first->group) first--;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(first->group, groups[i]) == 0) return true;
    return false;
}

_Static_assert(sizeof settings_knobs / sizeof *settings_knobs <= SETTINGS_KNOBS,
               "settings.from has a byte for each");
