package batch_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hearth/engine"
	"hearth/engine/batch"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata give now into them")

// TestGolden runs the scripts in testdata. A script is commands, each followed by a line "----", what it prints, and
// an empty line:
//
//	config cells=64 context=32 sequences=4 ...    a new scheduler; fields of Config in lower case
//	submit id=1 prompt=a20+b5 max=4 ...           a20 is the first 20 tokens of trunk a, +b5 five of branch b
//	step [n] [ms=10] [rowus=0] [code=1] [stop=1.0]
//	                                              n times Plan and Commit; a decode takes ms and rowus microseconds for
//	                                              each prefill row; stop ends job 1 choice 0 at its token
//	                                              lose=1: whatever it saves is lost
//	run [ms=10]                                   steps until idle; prints only the events
//	short n=50                                    n requests with an output of one token, not printed
//	cancel id=1, hold id=1, unhold id=1, stats, wait ms=100, prime decode=4 prefill=0 span=256 ms=10
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	g := &script{t: t}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			continue
		}
		got := g.command(line)
		var want strings.Builder
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i += 2; i < len(lines) && lines[i] != ""; i++ {
				want.WriteString(lines[i] + "\n")
			}
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n", line, got)
		if got != want.String() && !*rewrite {
			t.Errorf("%s: %s\ngot:\n%swant:\n%s", file, line, got, want.String())
		}
	}
	if *rewrite {
		text := out.String()
		for strings.Contains(text, "\n\n\n") {
			text = strings.ReplaceAll(text, "\n\n\n", "\n\n")
		}
		if err := os.WriteFile(file, []byte(strings.TrimRight(text, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type script struct {
	t   *testing.T
	s   *batch.Scheduler
	now time.Duration
}

// args splits "name k=v k=v 3" into the name, the values, and a bare number under "n".
func args(line string) (string, map[string]string) {
	f := strings.Fields(line)
	m := map[string]string{}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			m[k] = v
		} else {
			m["n"] = a
		}
	}
	return f[0], m
}

func (g *script) num(m map[string]string, key string, def int) int {
	v, ok := m[key]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		g.t.Fatalf("%s=%s: %v", key, v, err)
	}
	return n
}

func (g *script) command(line string) string {
	name, m := args(line)
	id := batch.JobID(g.num(m, "id", 0))
	switch name {
	case "config":
		return g.config(m)
	case "submit":
		return g.submit(id, m)
	case "cancel":
		return fmt.Sprintln(g.s.Cancel(g.now, id))
	case "hold", "unhold":
		return fmt.Sprintln(g.s.Hold(id, name == "hold"))
	case "wait":
		g.now += time.Duration(g.num(m, "ms", 0)) * time.Millisecond
		return ""
	case "prime":
		g.s.Prime(batch.Shape{Decode: g.num(m, "decode", 0), Prefill: g.num(m, "prefill", 0)},
			g.num(m, "span", 256), time.Duration(g.num(m, "ms", 10))*time.Millisecond)
		return ""
	case "short": // n requests with an output of one token: short outputs are expected from then on
		for i := range g.num(m, "n", 1) {
			g.submit(batch.JobID(100000+i), map[string]string{"prompt": "z2", "max": "1", "cache": "no"})
			g.run(m)
		}
		return ""
	case "step":
		var out string
		for range g.num(m, "n", 1) {
			text, _ := g.step(m)
			out += text
		}
		return out
	case "run":
		return g.run(m)
	case "stats":
		st := g.s.Stats()
		if st.HostLimit > 0 {
			return fmt.Sprintf("cells %d of %d; host: %d prefixes, %d of %d tokens, saved %d, loaded %d; from cache %d, evicted %d cells\n",
				st.CellsUsed, st.CellsTotal, st.HostPrefixes, st.HostTokens, st.HostLimit, st.HostSaves, st.HostLoads, st.CachedTokens, st.EvictedCells)
		}
		return fmt.Sprintf("running %d waiting %d cells %d cached %d of %d; prefilled %d, from cache %d, sampled %d; preempted %d, evicted %d cells\n",
			st.Running, st.Waiting, st.CellsUsed, st.CellsCached, st.CellsTotal, st.PromptTokens, st.CachedTokens, st.CompletionTokens, st.Preemptions, st.EvictedCells)
	}
	g.t.Fatalf("unknown command %q", line)
	return ""
}

func (g *script) config(m map[string]string) string {
	cfg := batch.Config{
		Cells: g.num(m, "cells", 0), Context: g.num(m, "context", 0), Sequences: g.num(m, "sequences", 0),
		Parking: g.num(m, "parking", 0), MaxRunning: g.num(m, "maxrunning", 0), Chunk: g.num(m, "chunk", 0),
		Outputs: g.num(m, "outputs", 0), Window: g.num(m, "window", 0), WindowCells: g.num(m, "windowcells", 0),
		MinPrefill: g.num(m, "minprefill", 0), FollowMin: g.num(m, "followmin", 0), QueueLimit: g.num(m, "queuelimit", 0),
		Recurrent: m["recurrent"] != "", NoAttention: m["noattention"] != "", NoPad: m["nopad"] != "", NoCopy: m["nocopy"] != "",
		TenantCache: m["tenantcache"] != "", ITLTarget: time.Duration(g.num(m, "itl", 0)) * time.Millisecond,
	}
	if host := g.num(m, "host", 0); host > 0 { // in tokens; a copy takes 1 us for each
		cfg.Host = batch.Host{Bytes: int64(host), TokenBytes: 1, Save: time.Microsecond, Load: time.Microsecond}
	}
	if m["layout"] == "streams" {
		cfg.Layout = batch.LayoutStreams
	}
	var err error
	if g.s, err = batch.New(cfg); err != nil {
		return err.Error() + "\n"
	}
	g.now = 0
	return ""
}

func (g *script) submit(id batch.JobID, m map[string]string) string {
	j := batch.Job{
		ID: id, Prompt: g.tokens(m["prompt"]), MaxTokens: g.num(m, "max", -1), Choices: g.num(m, "n", 1),
		Tenant: m["tenant"], Priority: engine.Priority(g.num(m, "priority", 0)), Cache: m["cache"] != "no",
	}
	if r := m["resume"]; r != "" {
		j.Resume = append(j.Resume, g.tokens(r))
	}
	if mark := g.num(m, "mark", 0); mark > 0 {
		j.Marks = []int{mark}
	}
	if err := g.s.Submit(g.now, j); err != nil {
		return fmt.Sprintf("%s: %v\n", engine.KindOf(err), err)
	}
	return ""
}

// tokens reads "a20+b5". Token i of trunk x is x*1000+i, whatever comes before it.
func (g *script) tokens(text string) (out []engine.Token) {
	for _, part := range strings.Split(text, "+") {
		n, err := strconv.Atoi(part[1:])
		if err != nil {
			g.t.Fatalf("prompt %q: %v", text, err)
		}
		for i := range n {
			out = append(out, engine.Token(part[0])*1000+engine.Token(i))
		}
	}
	return out
}

// step prints one Plan and Commit.
func (g *script) step(m map[string]string) (string, bool) {
	st := g.s.Plan(g.now)
	var out strings.Builder
	fmt.Fprintf(&out, "step %d", st.Number)
	if st.Evaluations > 1 {
		fmt.Fprintf(&out, " in %d evaluations", st.Evaluations)
	}
	out.WriteString("\n" + printEvents(st.Events) + printOps("", st.Ops))
	for i := 0; i < len(st.Rows); {
		k := i
		for k < len(st.Rows) && st.Rows[k].Seq == st.Rows[i].Seq {
			k++
		}
		fmt.Fprintf(&out, "  seq %d %s %d..%d", st.Rows[i].Seq, [...]string{"decode", "prefill", "pad"}[st.Rows[i].Kind], st.Rows[i].Pos, st.Rows[k-1].Pos)
		for _, sm := range st.Samples {
			if int(sm.Row) >= i && int(sm.Row) < k {
				fmt.Fprintf(&out, " -> %d.%d#%d", sm.Job, sm.Choice, sm.Index)
			}
		}
		out.WriteString("\n")
		i = k
	}
	out.WriteString(printOps("after ", st.After))
	if st.Idle() && st.Wait > 0 {
		fmt.Fprintf(&out, "  waits %v\n", st.Wait)
		g.now += st.Wait
		return out.String(), true
	}
	if st.Idle() {
		out.WriteString("  idle\n")
		return out.String(), false
	}
	res := batch.Result{Code: batch.Code(g.num(m, "code", 0)), Duration: time.Duration(g.num(m, "ms", 10)) * time.Millisecond}
	res.Duration += time.Duration(st.Prefills*g.num(m, "rowus", 0)) * time.Microsecond
	for _, op := range st.Ops {
		if op.Kind == batch.OpSave && m["lose"] != "" {
			res.Lost = append(res.Lost, op.Host)
		}
	}
	for _, sm := range st.Samples {
		sampled := batch.Sampled{Token: engine.Token(900000 + int(sm.Job)*1000 + int(sm.Choice)*100 + int(sm.Index))}
		if m["stop"] == fmt.Sprintf("%d.%d", sm.Job, sm.Choice) {
			sampled.Finish = engine.FinishStop
		}
		res.Sampled = append(res.Sampled, sampled)
	}
	g.now += res.Duration
	out.WriteString(printEvents(g.s.Commit(g.now, res)))
	return out.String(), true
}

// run steps until idle and prints only lines of events.
func (g *script) run(m map[string]string) string {
	var out string
	for i := range 10000 {
		text, more := g.step(m)
		for _, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "  * ") && !strings.Contains(line, "prefilled") {
				out += line + "\n"
			}
		}
		if !more {
			return out + fmt.Sprintf("  %d steps\n", i)
		}
	}
	g.t.Fatal("no end")
	return ""
}

func printOps(prefix string, ops []batch.Op) string {
	var out string
	for _, op := range ops {
		switch op.Kind {
		case batch.OpCopy:
			out += fmt.Sprintf("  %scopy %d -> %d [%d, %d)\n", prefix, op.Src, op.Seq, op.P0, op.P1)
		case batch.OpSave:
			out += fmt.Sprintf("  save %d -> host %d, %d tokens\n", op.Seq, op.Host, op.P1)
		case batch.OpLoad:
			out += fmt.Sprintf("  load host %d -> %d, %d tokens", op.Host, op.Seq, op.P1-op.P0)
			if op.P0 > 0 {
				out += fmt.Sprintf(" from %d on", op.P0)
			}
			out += "\n"
		case batch.OpForget:
			out += fmt.Sprintf("  forget host %d\n", op.Host)
		default:
			out += fmt.Sprintf("  %sremove %d [%d, %d)\n", prefix, op.Seq, op.P0, op.P1)
		}
	}
	return out
}

func printEvents(evs []batch.Event) string {
	var out string
	for _, ev := range evs {
		out += fmt.Sprintf("  * %d.%d ", ev.Job, ev.Choice)
		switch ev.Kind {
		case batch.EventAdmitted:
			out += fmt.Sprintf("admitted, %d of %d cached", ev.Cached, ev.Total)
		case batch.EventPrefill:
			out += fmt.Sprintf("prefilled %d of %d", ev.Done, ev.Total)
		case batch.EventFinished:
			out += "finished: " + string(ev.Reason)
		case batch.EventDone:
			u := ev.Usage
			out += fmt.Sprintf("done: prompt %d, cached %d, completion %d, queue %v, prefill %v, decode %v, preemptions %d",
				u.Prompt, u.Cached, u.Completion, u.Queue, u.Prefill, u.Decode, u.Preemptions)
		case batch.EventPreempted:
			out += "preempted"
		case batch.EventMismatch:
			out += "mismatch"
		case batch.EventRelayout:
			out += "relayout to " + ev.Layout.String()
		}
		out += "\n"
	}
	return out
}
