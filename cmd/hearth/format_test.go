package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestFormats(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 98362432: "98 MB", 4_700_000_000: "4.7 GB", 1 << 50: "1.1 PB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{12: "12", 134515008: "135M", 7_240_000_000: "7.2B", 70_600_000_000: "71B"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0 seconds", time.Second: "1 second", 90 * time.Second: "1 minute", 47 * time.Hour: "47 hours", 50 * time.Hour: "2 days",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestLineProgress(t *testing.T) {
	var out strings.Builder
	clock := time.Unix(0, 0)
	p := &lineProgress{w: &out, now: func() time.Time { return clock }}
	b := p.Bar("m.gguf", 1000)
	for i := int64(1); i <= 10; i++ {
		clock = clock.Add(time.Second)
		b.Set(i*100, 1000)
	}
	b.Done(nil)
	p.Bar("bad", -1).Done(errors.New("broken"))
	want := "m.gguf: 500 B of 1.0 kB (50%)\nm.gguf: 1.0 kB of 1.0 kB (100%)\nm.gguf: 1.0 kB, done\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", &out, want)
	}
}
