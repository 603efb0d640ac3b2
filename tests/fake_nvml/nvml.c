/* A stand-in for NVIDIA's management library, for machines without a card: cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c
 *
 * What it answers is in the environment: FAKE_NVML_DRIVER, and FAKE_NVML_DEVICES, one device a line, its fields separated
 * by commas: kind (gpu, or mig for a slice of the gpu before it), name, uuid, capability, MiB in all, MiB in use, pid of a
 * process on it (0: none). FAKE_NVML_HIDE=pids answers as in a container that hides process ids.
 * https://docs.nvidia.com/deploy/nvml-api/
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef unsigned long long u64;
typedef struct {
    char kind[8], name[96], uuid[96];
    int major, minor, parent; /* parent: index of a slice's card, -1 for a card */
    u64 total, used;
    unsigned pid;
} Device;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;

static Device devices[32];
static int count;

int nvmlInitWithFlags(unsigned flags) {
    const char *line = getenv("FAKE_NVML_DEVICES");
    int card = -1;
    count = 0;
    while (line && *line && count < 32) {
        Device *d = &devices[count];
        u64 total, used;
        if (sscanf(line, "%7[^,],%95[^,],%95[^,],%d.%d,%llu,%llu,%u", d->kind, d->name, d->uuid, &d->major, &d->minor,
                   &total, &used, &d->pid) == 8) {
            d->total = total << 20;
            d->used = used << 20;
            d->parent = strcmp(d->kind, "mig") ? -1 : card;
            if (d->parent < 0) card = count;
            count++;
        }
        line = strchr(line, '\n');
        if (line) line++;
    }
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error == NOT_SUPPORTED ? "Not Supported" : "made up"; }

static int put(const char *text, char *buffer, unsigned size) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    const char *driver = getenv("FAKE_NVML_DRIVER");
    return put(driver ? driver : "580.159.04", buffer, size);
}

static Device *nth(int parent, unsigned index) {
    for (int i = 0; i < count; i++)
        if (devices[i].parent == parent && index-- == 0) return &devices[i];
    return NULL;
}
static unsigned slices(Device *d) {
    unsigned found = 0;
    while (nth((int)(d - devices), found)) found++;
    return found;
}
int nvmlDeviceGetCount_v2(unsigned *found) {
    for (*found = 0; nth(-1, *found);) ++*found;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    return (*device = nth(-1, index)) ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    for (int i = 0; i < count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            *device = &devices[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(Device *d, unsigned *index) {
    for (*index = 0; nth(-1, *index) != d;)
        if (!nth(-1, (*index)++)) return NOT_SUPPORTED;
    return SUCCESS;
}
int nvmlDeviceGetName(Device *d, char *buffer, unsigned size) { return put(d->name, buffer, size); }
int nvmlDeviceGetUUID(Device *d, char *buffer, unsigned size) { return put(d->uuid, buffer, size); }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    *major = d->major;
    *minor = d->minor;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *memory) {
    *memory = (Memory){d->total, d->total - d->used, d->used};
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *memory) {
    *memory = (Memory2){memory->version, d->total, 0, d->total - d->used, d->used};
    return SUCCESS;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *pending) {
    *now = *pending = d->parent < 0 && slices(d) > 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *found) {
    *found = slices(d) ? 7 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **slice) {
    return (*slice = nth((int)(d - devices), index)) ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *found, Process *processes) {
    const char *hide = getenv("FAKE_NVML_HIDE");
    unsigned room = *found;
    *found = d->pid && !(hide && !strcmp(hide, "pids"));
    if (*found > room) return INSUFFICIENT_SIZE;
    if (*found) processes[0] = (Process){d->pid, d->used, -1, -1};
    return SUCCESS;
}
