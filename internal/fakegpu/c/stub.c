// A pretend GPU for ROCr's model mode (libhsakmt, HSA_MODEL_LIB): it takes queue packets and retires them. Copies and
// fills of the DMA queues are carried out by the CPU; kernels are not executed, so a program that computes on this GPU
// gets whatever lay in memory. What is real is everything around: device lists, memory, queues, signals, code object
// loading, and the errors of all of them.
//
// The interface is the structure that get_hsakmt_model_functions returns: two version numbers and ten functions, for
// which ROCr 7.2 wants version 0.4. A queue's ring, read and write pointer are addresses of the GPU; the host address
// is the aperture's base plus that.
//
// With FAKEGPU_LOG=1 every packet is printed to stderr.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUEUE_SDMA = 1, QUEUE_AQL = 2 };
enum { AQL_VENDOR = 0, AQL_INVALID = 1, AQL_DISPATCH = 2, AQL_BARRIER_AND = 3, AQL_BARRIER_OR = 5, AQL_BYTES = 64 };

typedef void (*set_event_fn)(void *data, unsigned event_id);

struct gpu {
	char *base; // host address of GPU address 0
	set_event_fn set_event;
	void *set_event_data;
};

struct queue_info { // libhsakmt's register_queue argument
	uint64_t ring, write_ptr, read_ptr;
	uint64_t *doorbell;
	uint32_t ring_bytes, type;
};

struct queue {
	struct gpu *gpu;
	struct queue_info info;
	pthread_t thread;
	atomic_int stop;
};

static int logging(void) {
	static atomic_int state; // 0 not asked yet, 1 no, 2 yes
	int s = atomic_load(&state);
	if (s == 0) {
		s = getenv("FAKEGPU_LOG") ? 2 : 1;
		atomic_store(&state, s);
	}
	return s == 2;
}

#define LOG(...) do { if (logging()) { fprintf(stderr, "fakegpu: " __VA_ARGS__); fputc('\n', stderr); } } while (0)

static void *host(struct gpu *g, uint64_t address) { return g->base + address; }

static uint64_t load64(struct gpu *g, uint64_t address) { return atomic_load((_Atomic uint64_t *)host(g, address)); }

static void nap(void) {
	struct timespec t = {0, 20000}; // 20 us: ROCr rings no doorbell here, the write pointer is all there is to watch
	nanosleep(&t, NULL);
}

// complete does what the packet processor does at a packet's end: time stamps, then the signal's value goes down by
// one, then whoever sleeps on the signal's event is woken. Offsets are those of amd_signal_t.
static void complete(struct gpu *g, uint64_t signal) {
	if (signal == 0) return;
	char *s = host(g, signal);
	*(uint64_t *)(s + 32) = 1000; // start and end, in ticks; never used for more than a difference
	*(uint64_t *)(s + 40) = 2000;
	atomic_fetch_sub((_Atomic int64_t *)(s + 8), 1);
	uint64_t mailbox = *(uint64_t *)(s + 16);
	uint32_t event = *(uint32_t *)(s + 24);
	if (mailbox != 0) {
		*(volatile uint64_t *)host(g, mailbox) = event;
		if (g->set_event) g->set_event(g->set_event_data, event);
	}
}

static int64_t signal_value(struct gpu *g, uint64_t signal) {
	return atomic_load((_Atomic int64_t *)((char *)host(g, signal) + 8));
}

// barrier waits for the dependencies of a barrier packet: all of them (AND) or any (OR).
static void barrier(struct queue *q, const char *packet, int any) {
	while (!atomic_load(&q->stop)) {
		int waiting = 0, present = 0, reached = 0;
		for (int i = 0; i < 5; i++) {
			uint64_t dep = *(const uint64_t *)(packet + 8 + 8 * i);
			if (dep == 0) continue;
			present++;
			if (signal_value(q->gpu, dep) == 0) reached++; else waiting++;
		}
		if (present == 0 || waiting == 0 || (any && reached > 0)) return;
		nap();
	}
}

static void *run_aql(void *arg) {
	struct queue *q = arg;
	struct gpu *g = q->gpu;
	char *ring = host(g, q->info.ring);
	uint32_t slots = q->info.ring_bytes / AQL_BYTES;
	volatile uint64_t *read_ptr = host(g, q->info.read_ptr);
	for (uint64_t at = *read_ptr; !atomic_load(&q->stop);) {
		char *packet = ring + (at % slots) * AQL_BYTES;
		uint16_t header = atomic_load((_Atomic uint16_t *)packet);
		if (at >= load64(g, q->info.write_ptr) || (header & 0xff) == AQL_INVALID) { // nothing yet, or not published yet
			nap();
			continue;
		}
		uint64_t done = *(uint64_t *)(packet + 56);
		switch (header & 0xff) {
		case AQL_DISPATCH:
			LOG("dispatch grid %u %u %u", *(uint32_t *)(packet + 12), *(uint32_t *)(packet + 16), *(uint32_t *)(packet + 20));
			break;
		case AQL_BARRIER_AND:
		case AQL_BARRIER_OR:
			barrier(q, packet, (header & 0xff) == AQL_BARRIER_OR);
			break;
		default:
			LOG("packet type %u", header & 0xff);
		}
		atomic_store((_Atomic uint16_t *)packet, (uint16_t)((header & 0xff00) | AQL_INVALID));
		complete(g, done);
		*read_ptr = ++at;
	}
	return NULL;
}

struct ring { uint32_t *words; uint32_t count, at; }; // a DMA ring of 32-bit words and a position in it

static uint32_t word(struct ring *r, uint32_t i) { return r->words[(r->at + i) % r->count]; }
static uint64_t pair(struct ring *r, uint32_t i) { return (uint64_t)word(r, i + 1) << 32 | word(r, i); }

// poll_memory waits until a word of memory compares as the packet asks.
static void poll_memory(struct queue *q, struct ring *r) {
	volatile uint32_t *address = host(q->gpu, pair(r, 1));
	uint32_t ref = word(r, 3), mask = word(r, 4), how = word(r, 0) >> 28 & 7;
	while (!atomic_load(&q->stop)) {
		uint32_t v = *address & mask;
		int met[8] = {1, v < ref, v <= ref, v == ref, v != ref, v >= ref, v > ref, 1};
		if (met[how]) return;
		nap();
	}
}

// run_packet carries out one DMA packet and returns its length in words.
static uint32_t run_packet(struct queue *q, struct ring *r) {
	struct gpu *g = q->gpu;
	uint32_t head = word(r, 0), op = head & 0xff, sub = head >> 8 & 0xff;
	switch (op) {
	case 0: // no operation, with padding
		return 1 + (head >> 16 & 0x3fff);
	case 1: // linear copy
		if (sub != 0) break;
		memmove(host(g, pair(r, 5)), host(g, pair(r, 3)), (uint64_t)(word(r, 1) & 0x3fffffff) + 1);
		return 7;
	case 5: // fence: write a word
		*(volatile uint32_t *)host(g, pair(r, 1)) = word(r, 3);
		return 4;
	case 6: // trap: wake an event
		if ((word(r, 1) & 0xfffffff) && g->set_event) g->set_event(g->set_event_data, word(r, 1) & 0xfffffff);
		return 2;
	case 8: // poll a register (a cache flush in disguise: bit 31 clear) or memory
		if (head >> 31) poll_memory(q, r);
		return 6;
	case 10: // atomic add
		atomic_fetch_add((_Atomic int64_t *)host(g, pair(r, 1)), (int64_t)pair(r, 3));
		return 8;
	case 11: { // constant fill
		uint64_t n = ((word(r, 4) & 0x3fffffff) + 1) / 4;
		uint32_t *to = host(g, pair(r, 1)), value = word(r, 3);
		for (uint64_t i = 0; i < n; i++) to[i] = value;
		return 5;
	}
	case 13: // time stamp
		*(volatile uint64_t *)host(g, pair(r, 1)) = 1000;
		return 3;
	case 17: // cache control
		return 5;
	}
	fprintf(stderr, "fakegpu: DMA packet %u.%u is not known\n", op, sub);
	abort(); // skipping it would leave a copy undone without a word
}

static void *run_sdma(void *arg) {
	struct queue *q = arg;
	struct gpu *g = q->gpu;
	struct ring r = {host(g, q->info.ring), q->info.ring_bytes / 4, 0};
	volatile uint64_t *read_ptr = host(g, q->info.read_ptr);
	for (uint64_t at = *read_ptr; !atomic_load(&q->stop);) { // the pointers count bytes here
		if (at >= load64(g, q->info.write_ptr)) {
			nap();
			continue;
		}
		r.at = (uint32_t)(at / 4 % r.count);
		LOG("DMA packet %u.%u", word(&r, 0) & 0xff, word(&r, 0) >> 8 & 0xff);
		at += 4 * run_packet(q, &r);
		*read_ptr = at;
	}
	return NULL;
}

static void *gpu_create(void) { return calloc(1, sizeof(struct gpu)); }
static void gpu_destroy(void *g) { free(g); }

static void gpu_aperture(struct gpu *g, void *base, uint64_t size) {
	g->base = base;
	LOG("aperture of %llu MiB", (unsigned long long)size >> 20);
}

static void gpu_memory(struct gpu *g, void *address, uint64_t size, uint32_t flags) { (void)g, (void)address, (void)size, (void)flags; }
static void gpu_memory_freed(struct gpu *g, void *address, uint64_t size) { (void)g, (void)address, (void)size; }
static void gpu_ignored(struct gpu *g, void *fn, void *data) { (void)g, (void)fn, (void)data; }

static void gpu_set_event(struct gpu *g, set_event_fn fn, void *data) {
	g->set_event = fn;
	g->set_event_data = data;
}

static void *queue_create(struct gpu *g, const struct queue_info *info) {
	struct queue *q = calloc(1, sizeof *q);
	if (q == NULL) abort();
	q->gpu = g;
	q->info = *info;
	LOG("queue of type %u", info->type);
	if (info->type != QUEUE_AQL && info->type != QUEUE_SDMA) abort();
	if (pthread_create(&q->thread, NULL, info->type == QUEUE_AQL ? run_aql : run_sdma, q) != 0) abort();
	return q;
}

static void queue_destroy(struct gpu *g, struct queue *q) {
	(void)g;
	atomic_store(&q->stop, 1);
	pthread_join(q->thread, NULL);
	free(q);
}

struct functions { uint32_t major, minor; void *fn[10]; };

const struct functions *get_hsakmt_model_functions(void) {
	static const struct functions table = {0, 4, {
		gpu_create, gpu_destroy, gpu_aperture, gpu_memory, gpu_memory_freed, gpu_ignored /* notify event, unused */,
		gpu_ignored /* wait event */, queue_create, gpu_set_event, queue_destroy,
	}};
	return &table;
}
