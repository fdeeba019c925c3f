package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hearth/bench/load"
)

func (a *app) benchCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure servers and the engine below them",
		Args:  args(cobra.NoArgs),
	}
	c.AddCommand(a.benchLoadCmd(), a.benchPeersCmd(), a.benchCeilingCmd())
	return c
}

// loadFlags fills a load.Spec from flags.
func loadFlags(f *pflag.FlagSet, s *load.Spec) {
	var names []string
	for _, w := range load.Workloads() {
		names = append(names, string(w))
	}
	f.StringVar((*string)(&s.Workload), "workload", string(load.Chat), strings.Join(names, ", "))
	f.IntVar(&s.Clients, "clients", 8, "requests in flight (closed loop), or tenants (open loop)")
	f.Float64Var(&s.Rate, "rate", 0, "open loop: requests per second at Poisson times; 0: closed loop")
	f.IntVar(&s.Requests, "requests", 32, "requests in all")
	f.IntVar(&s.PromptWords, "prompt-words", 256, "words of each user prompt")
	f.IntVar(&s.PrefixWords, "prefix-words", 1024, "words of the shared prefix (shared-prefix, branching)")
	f.IntVar(&s.MaxTokens, "max-tokens", 64, "output tokens of each request")
	f.IntVar(&s.Branches, "branches", 4, "branching: requests of one trunk")
	f.IntVar(&s.Turns, "turns", 4, "turns: questions of one conversation")
	f.IntVar(&s.Conversations, "conversations", 1, "turns: conversations that each client holds in turns")
	f.Float64Var(&s.CancelShare, "cancel-share", 0.5, "cancel: part of the requests that are cut off")
	f.IntVar(&s.InjectWords, "inject-words", 4096, "mixed: words of each long prompt")
	f.IntVar(&s.Injections, "injections", 3, "mixed: long prompts, one after another")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of prompts and choices")
	f.IntVar(&s.Tenants, "tenants", 0, "spread the clients over so many API keys (tenant-0, ...)")
}

func (a *app) benchLoadCmd() *cobra.Command {
	var spec load.Spec
	var url, key string
	var temperature float64
	var eos bool
	var timeout time.Duration
	c := a.jsonFlag(&cobra.Command{
		Use:   "load MODEL",
		Short: "send a workload to any OpenAI-compatible server",
		Long: "Sends seeded requests to a server's /v1/chat/completions and reports time to first token, inter-token\n" +
			"latency and throughput. Prompts are made of three-letter words; how many tokens that is, the report says.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if err := spec.Validate(); err != nil {
				return &usageError{err.Error(), "hearth bench load --help lists the flags"}
			}
			client := &load.Client{
				BaseURL: strings.TrimSuffix(strings.TrimSuffix(url, "/"), "/v1"), Model: argv[0], APIKey: key, Temperature: temperature, IgnoreEOS: !eos,
				Timeout: timeout, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
			}
			r, err := load.Run(cmd.Context(), client, spec)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			r.Print(a.out)
			if r.Completed == 0 && r.Cancelled == 0 {
				return fmt.Errorf("none of %d requests was answered", r.Requests)
			}
			return nil
		},
	})
	f := c.Flags()
	loadFlags(f, &spec)
	f.StringVar(&url, "url", "http://127.0.0.1:9595", "the server, with or without /v1")
	f.StringVar(&key, "api-key", "", "API key to send")
	f.Float64Var(&temperature, "temperature", 0, "temperature of every request")
	f.BoolVar(&eos, "stop-at-eos", false, "let answers end by themselves instead of asking for exactly --max-tokens (ignore_eos)")
	f.DurationVar(&timeout, "timeout", 10*time.Minute, "bound on one request")
	return c
}
