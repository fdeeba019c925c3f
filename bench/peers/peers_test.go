package peers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hearth/bench/load"
)

// TestMain lets the test binary stand in for a server: with HEARTH_FAKE_SERVER set it serves and never tests.
func TestMain(m *testing.M) {
	switch os.Getenv("HEARTH_FAKE_SERVER") {
	case "":
		os.Exit(m.Run())
	case "dies":
		os.Exit(3)
	}
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {})
	http.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"fake"}]}`) })
	http.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	})
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func fake(t *testing.T, name, kind string) Server {
	return Server{Name: name, Argv: []string{os.Args[0], "{port}"}, Env: []string{"HEARTH_FAKE_SERVER=" + kind},
		Port: freePort(t), ReadyPath: "/health", LogFile: filepath.Join(t.TempDir(), "log")}
}

func TestRunComparesAndPrints(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := Run(ctx, Config{
		Servers: []Server{fake(t, "one", "ok"), fake(t, "two", "ok")},
		Loads:   []load.Spec{{Workload: load.Chat, Clients: 2, Requests: 4, PromptWords: 2, MaxTokens: 3}},
		Rounds:  2, Warm: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Outcomes) != 2 || len(res.Outcomes[0].Rounds) != 2 || res.Outcomes[1].Rounds[0].CompletionTokens != 12 {
		t.Errorf("outcomes = %+v", res.Outcomes)
	}
	if res.StartUps[0].IdleWorker.RSS == 0 || res.StartUps[1].ReadySeconds <= 0 {
		t.Errorf("start-ups = %+v", res.StartUps)
	}
	var b bytes.Buffer
	res.Print(&b)
	for _, want := range []string{"| one |", "| two |", "x) |", "chat: 2 clients, 4 requests"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestServerThatDiesIsAnError(t *testing.T) {
	_, err := Run(context.Background(), Config{Servers: []Server{fake(t, "dead", "dies")}})
	if err == nil || !strings.Contains(err.Error(), "dead did not become ready") || !strings.Contains(err.Error(), "log") {
		t.Errorf("err = %v", err)
	}
}

func TestParseKiB(t *testing.T) {
	got := parseKiB("00400000-7ff r--p [rollup]\nRss:        2048 kB\nPss:  1024 kB\nTHPeligible: 0\nName:\tx kB\n")
	if got["Rss"] != 2<<20 || got["Pss"] != 1<<20 || len(got) != 2 {
		t.Errorf("parsed %v", got)
	}
}

func TestFindChild(t *testing.T) {
	proc := t.TempDir()
	add := func(pid, parent int, cmd string) {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		os.MkdirAll(dir, 0o755)
		os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (odd) name) S %d 1 1", pid, parent), 0o644)
		os.WriteFile(filepath.Join(dir, "cmdline"), []byte(cmd), 0o644)
	}
	add(10, 1, "hearth\x00serve")
	add(11, 10, "ld.so\x00bin/hearth-engine")
	add(12, 1, "other/hearth-engine")
	if pid, err := findChild(proc, 10, "hearth-engine"); pid != 11 || err != nil {
		t.Errorf("found %d, %v; want 11", pid, err)
	}
	if _, err := findChild(proc, 12, "hearth-engine"); err == nil {
		t.Error("a process is not its own child")
	}
}
