// threads.c: how exactly the Go runtime's monitor thread is woken.
//
// While a P sits in a call into C, and a step is one, the runtime's monitor (sysmon) sleeps 20 us at a time, some 30 times
// a step on a CPU. There OpenMP's threads spin on every core, so each of these wake-ups takes a core from the step, all
// of whose threads then wait for each other: decoding was about 7 % slower for it. A timer slack lets the kernel put
// the wake-ups off. No other thread gets one: Go's other threads sleep for 3 us before they steal work, and drivers and
// OpenMP have timers of their own.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

// How late the monitor may wake, in ns. Its work is to take the P of a goroutine that stays in C and to preempt one that
// computes for 10 ms; this much later hurts neither.
#define MONITOR_SLACK 4000000UL

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);

struct start {
    void *(*fn)(void *);
    void         *arg;
    unsigned long slack;
};

// Where a kernel refuses prctl, the thread keeps the slack it has.
static void *begin(void *p) {
    struct start s = *(struct start *) p;
    free(p);
    prctl(PR_SET_TIMERSLACK, s.slack, 0, 0, 0);
    return s.fn(s.arg);
}

// The linker puts this in the place of pthread_create for what it links into the program itself: Go's runtime, not the
// libraries. The runtime's first thread is the monitor's. A thread inherits the slack of the one that made it, and the
// monitor makes threads too, so all later ones are given the value that the program was started with.
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    static atomic_int    made;
    static unsigned long usual; // written before there is a second thread
    struct start *s = malloc(sizeof *s);
    if (!s) return __real_pthread_create(thread, attr, fn, arg);
    bool monitor = atomic_fetch_add(&made, 1) == 0;
    if (monitor) {
        int now = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        usual = now > 0 ? (unsigned long) now : 50000;
    }
    *s = (struct start){fn, arg, monitor ? MONITOR_SLACK : usual};
    int rc = __real_pthread_create(thread, attr, begin, s);
    if (rc != 0) free(s);
    return rc;
}
