package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"hearth/models/hub"
)

// progress shows transfers: moving bars on a terminal, a line now and then elsewhere. wait ends the display.
func (a *app) progress() (p hub.Progress, wait func()) {
	if terminal(a.err) && a.env.Color() {
		t := &ttyProgress{w: a.err, bars: mpb.New(mpb.WithOutput(a.err), mpb.WithWidth(40), mpb.WithRefreshRate(150*time.Millisecond))}
		return t, t.bars.Wait
	}
	return &lineProgress{w: a.err, now: a.now}, func() {}
}

type ttyProgress struct {
	w    io.Writer
	bars *mpb.Progress
}

func (t *ttyProgress) Note(text string) { fmt.Fprintln(t.bars, text) }

func (t *ttyProgress) Bar(label string, total int64) hub.Bar {
	b := t.bars.AddBar(max(total, 0),
		mpb.PrependDecorators(decor.Name(label, decor.WC{C: decor.DindentRight | decor.DextraSpace}), decor.CountersKiloByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1000(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_GO)),
	)
	return &ttyBar{b}
}

type ttyBar struct{ b *mpb.Bar }

func (t *ttyBar) Set(n, total int64) {
	if total < 0 {
		total = n + 1 // a total that is reached would end the bar
	}
	t.b.SetTotal(total, false)
	t.b.SetCurrent(n)
}

func (t *ttyBar) Done(err error) {
	if err != nil {
		t.b.Abort(false)
		return
	}
	t.b.SetTotal(-1, true)
}

// lineProgress is for logs and pipes. Safe for concurrent bars.
type lineProgress struct {
	mu  sync.Mutex
	w   io.Writer
	now func() time.Time
}

func (l *lineProgress) Note(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.w, text)
}

func (l *lineProgress) Bar(label string, total int64) hub.Bar {
	return &lineBar{l: l, label: label, total: total, last: l.now()}
}

type lineBar struct {
	l        *lineProgress
	label    string
	n, total int64
	last     time.Time
}

// lineEvery is how often a line is written while a transfer runs.
const lineEvery = 5 * time.Second

func (b *lineBar) Set(n, total int64) {
	b.n, b.total = n, total
	if t := b.l.now(); t.Sub(b.last) >= lineEvery {
		b.last = t
		b.l.Note(b.label + ": " + b.state())
	}
}

func (b *lineBar) state() string {
	if b.total <= 0 {
		return size(b.n)
	}
	return fmt.Sprintf("%s of %s (%d%%)", size(b.n), size(b.total), b.n*100/b.total)
}

func (b *lineBar) Done(err error) {
	if err == nil {
		b.l.Note(b.label + ": " + size(b.n) + ", done")
	}
}
