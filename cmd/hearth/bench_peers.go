package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hearth/bench/ceiling"
	"hearth/bench/load"
	"hearth/bench/peers"
)

// contender describes one server of `bench peers`: a name and a command line.
type contender struct{ name, line string }

func parseContender(s string) (contender, error) {
	name, line, ok := strings.Cut(s, "=")
	if !ok || name == "" || line == "" {
		return contender{}, &usageError{fmt.Sprintf("%q is not NAME=COMMAND LINE", s), "for example --peer 'llama-np16=build/peers/bin/llama-server -np 16'"}
	}
	return contender{name, line}, nil
}

// freePort asks the system for a loopback port that is free now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// self is the hearth server of a benchmark, serving the GGUF file on a free port.
func self(file, logs string, flags []string) (peers.Server, error) {
	port, err := freePort()
	if err != nil {
		return peers.Server{}, err
	}
	exe, err := os.Executable()
	if err != nil {
		return peers.Server{}, err
	}
	return peers.Server{
		Name: "hearth", Port: port, ReadyPath: "/ready", Env: []string{"XDG_DATA_HOME=" + logs}, WorkerName: "hearth-engine", LogFile: filepath.Join(logs, "hearth.log"),
		Argv: append([]string{exe, "serve", "file:" + file, "--listen", "127.0.0.1:{port}"}, flags...),
	}, nil
}

func (a *app) benchPeersCmd() *cobra.Command {
	var spec load.Spec
	var others, flags, workloads []string
	var clients []int
	var rounds int
	var warm bool
	var out string
	c := a.jsonFlag(&cobra.Command{
		Use:   "peers FILE",
		Short: "the same loads on hearth and on other servers, in one run",
		Long: "Starts `hearth serve` on a GGUF file and each --peer beside it, sends all of them the same seeded loads in turn, and\n" +
			"prints a Markdown report with ratios. A peer is NAME=COMMAND LINE; {port} and {model} in it are replaced. It must\n" +
			"answer /health with 200 when it is ready.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			file, err := filepath.Abs(argv[0])
			if err != nil {
				return err
			}
			logs, err := os.MkdirTemp("", "hearth-bench-")
			if err != nil {
				return err
			}
			cfg := peers.Config{Rounds: rounds, Warm: warm, Timeout: 10 * time.Minute,
				Log: func(format string, v ...any) { a.notef(format+"\n", v...) }}
			me, err := self(file, logs, flags)
			if err != nil {
				return err
			}
			cfg.Servers = append(cfg.Servers, me)
			for _, o := range others {
				s, err := peerServer(o, file, logs)
				if err != nil {
					return err
				}
				cfg.Servers = append(cfg.Servers, s)
			}
			for _, w := range workloads {
				for _, n := range clients {
					s := spec
					s.Workload, s.Clients, s.Requests = load.Workload(w), n, max(spec.Requests, 2*n)
					if err := s.Validate(); err != nil {
						return &usageError{err.Error(), "hearth bench peers --help lists the flags"}
					}
					cfg.Loads = append(cfg.Loads, s)
				}
			}
			res, err := peers.Run(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writeJSON(out, res); err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(res)
			}
			res.Print(a.out)
			return nil
		},
	})
	f := c.Flags()
	loadFlags(f, &spec)
	f.StringArrayVar(&others, "peer", nil, "NAME=COMMAND LINE of another server; may be given several times")
	f.StringArrayVar(&flags, "hearth-flag", nil, "a further flag for hearth serve; may be given several times")
	f.StringSliceVar(&workloads, "workloads", []string{string(load.Chat)}, "workloads to run, in order")
	f.IntSliceVar(&clients, "client-counts", []int{1, 8}, "numbers of clients to run each workload with")
	f.IntVar(&rounds, "rounds", 3, "rounds of each load, interleaved between the servers")
	f.BoolVar(&warm, "warm", true, "send each load once before measuring")
	f.StringVar(&out, "out", "", "also write everything as JSON to this file")
	return c
}

func peerServer(s, file, logs string) (peers.Server, error) {
	p, err := parseContender(s)
	if err != nil {
		return peers.Server{}, err
	}
	port, err := freePort()
	if err != nil {
		return peers.Server{}, err
	}
	return peers.Server{
		Name: p.name, Port: port, ReadyPath: "/health", Model: file, LogFile: filepath.Join(logs, p.name+".log"),
		Argv: strings.Fields(strings.ReplaceAll(p.line, "{model}", file)),
	}, nil
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func (a *app) benchCeilingCmd() *cobra.Command {
	cfg := ceiling.Config{}
	var flags []string
	c := a.jsonFlag(&cobra.Command{
		Use:   "ceiling FILE",
		Short: "the server's decode and prefill speed over the raw llama.cpp loop",
		Long: "Alternates between the raw loops of hearth-engine (no server, no scheduler, greedy) and requests to `hearth serve` on\n" +
			"the same file, same context and same number of sequences, and prints both with their ratio.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			conf, err := a.config(cmd)
			if err != nil {
				return err
			}
			file, err := filepath.Abs(argv[0])
			if err != nil {
				return err
			}
			logs, err := os.MkdirTemp("", "hearth-bench-")
			if err != nil {
				return err
			}
			if cfg.Server, err = self(file, logs, flags); err != nil {
				return err
			}
			b, err := a.bundle(conf)
			if err != nil {
				return err
			}
			cfg.Raw = func(argv ...string) ([]string, []string) {
				cmd := b.Command("hearth-engine", append([]string{"bench", "-bundle", b.Dir, "-model", file}, argv...)...)
				return append([]string{cmd.Path}, cmd.Argv[1:]...), cmd.Env
			}
			cfg.Log = func(format string, v ...any) { a.notef(format+"\n", v...) }
			res, err := ceiling.Run(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			res.Print(a.out)
			return nil
		},
	})
	f := c.Flags()
	f.IntSliceVar(&cfg.Batches, "batch", []int{1}, "numbers of sequences that decode together")
	f.IntVar(&cfg.Context, "prompt-tokens", 256, "tokens in each sequence before decoding, about")
	f.IntVar(&cfg.Tokens, "max-tokens", 64, "tokens decoded in each sequence")
	f.IntVar(&cfg.Rounds, "rounds", 3, "rounds of raw loop and server, interleaved")
	f.BoolVar(&cfg.Fresh, "fresh", false, "start the server anew for each round: an empty prefix cache, as the raw loop has")
	f.StringVar(&cfg.Backend, "raw-backend", "cpu", "backend of the raw loop: cpu, vulkan or hip (give the server the same by --hearth-flag)")
	f.StringSliceVar(&cfg.Layouts, "raw-layouts", []string{"unified"}, "KV layouts of the raw loop; the better one counts")
	f.StringArrayVar(&flags, "hearth-flag", nil, "a further flag for hearth serve; may be given several times")
	return c
}
