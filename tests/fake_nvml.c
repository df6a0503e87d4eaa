/* fake_nvml.c - a stand-in for NVIDIA's management library, for machines without a GPU. It
 * exports the functions that tern calls.
 *
 * FAKE_NVML selects its behaviour: a number of GPUs; "dead": no driver is found; "mute": one GPU
 * that reports only its name and memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rates {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

static int gpus[4] = { 0, 1, 2, 3 };

static const char *behaviour(void)
{
    const char *v = getenv("FAKE_NVML");
    return v ? v : "2";
}

static int is_mute(void) { return strcmp(behaviour(), "mute") == 0; }

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetName(void *device, char *name, unsigned size);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out);
int nvmlDeviceGetUtilizationRates(void *device, struct rates *out);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);

int nvmlInit_v2(void) { return strcmp(behaviour(), "dead") == 0 ? 9 : 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = is_mute() ? 1 : (unsigned)atoi(behaviour());
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= 4) return 2;
    *device = &gpus[index];
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    snprintf(name, size, "Fake \"GPU\" %d", *(int *)device);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    *out = (struct memory){ 8000, 3000, 5000 + (unsigned)*(int *)device };
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct rates *out)
{
    if (is_mute()) return 3;
    *out = (struct rates){ 40 + (unsigned)*(int *)device, 7 };
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    if (is_mute() || sensor != 0) return 3;
    *celsius = 51 + (unsigned)*(int *)device;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    if (is_mute()) return 3;
    *milliwatts = 250500 + (unsigned)*(int *)device;
    return 0;
}
