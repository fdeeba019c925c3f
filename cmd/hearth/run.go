package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"hearth/configs"
)

// runOptions are the flags of run.
type runOptions struct {
	prompt, system string
	temperature    float64
	seed           int64
	maxTokens      int
	setTemp        bool
	setSeed        bool
}

func (a *app) runCmd() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:               "run MODEL",
		ValidArgsFunction: a.completeModels(1),
		Short:             "chat with a model in the terminal",
		Long: `Chats with a model, through the running server if there is one, else through one of its own for as long as the chat
lasts. Ctrl-C stops an answer, Ctrl-D or /bye leaves. With -p, or when standard input is no terminal, it answers once.`,
		Args:        args(cobra.ExactArgs(1)),
		Annotations: map[string]string{ownsInterrupt: "yes"},
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			o.setTemp, o.setSeed = cmd.Flags().Changed("temperature"), cmd.Flags().Changed("seed")
			return a.runModel(cmd, cfg, argv[0], o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.prompt, "prompt", "p", "", "answer this and leave")
	f.StringVar(&o.system, "system", "", "system message")
	f.Float64Var(&o.temperature, "temperature", 0, "0 is greedy (default: the server's)")
	f.Int64Var(&o.seed, "seed", 0, "makes sampling repeatable (default: random)")
	f.IntVar(&o.maxTokens, "max-tokens", 0, "longest answer (default: until the context is full)")
	configs.AddFlags(f, "engine.", "run.")
	return c
}

func (a *app) runModel(cmd *cobra.Command, cfg *configs.Config, name string, o runOptions) error {
	once := o.prompt != "" || !terminal(a.in)
	if once && o.prompt == "" {
		b, err := io.ReadAll(io.LimitReader(a.in, int64(cfg.Server.MaxBody)))
		if err != nil {
			return fmt.Errorf("read prompt: %w", err)
		}
		if o.prompt = strings.TrimSpace(string(b)); o.prompt == "" {
			return &usageError{"there is nothing to answer", "give a prompt with -p or on standard input"}
		}
	}
	c := clientFor(cfg)
	if !c.alive(cmd.Context()) {
		// Ctrl-C while the model loads leaves; afterwards it is the chat's.
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
		own, err := a.ownServer(ctx, cmd, cfg, name)
		stop()
		if err != nil {
			return err
		}
		defer own.stop()
		c, name = own.client, own.model
	} else if err := a.fetchFor(cmd, cfg, c, name); err != nil {
		return err
	}
	interrupts, stop := a.interrupts()
	defer stop()
	t := &talk{client: c, interrupts: interrupts, in: a.in, out: a.out, err: a.err, request: chatRequest{Model: name, MaxTokens: o.maxTokens}}
	if o.setTemp {
		t.request.Temperature = &o.temperature
	}
	if o.setSeed {
		t.request.Seed = &o.seed
	}
	if o.system != "" {
		t.request.Messages = []message{{"system", o.system}}
	}
	if once {
		return t.once(cmd.Context(), o.prompt)
	}
	return t.loop(cmd.Context())
}

// fetchFor fetches a model that the running server does not have, if that server is the one of these settings and so looks
// into the same store.
func (a *app) fetchFor(cmd *cobra.Command, cfg *configs.Config, c *client, name string) error {
	var entry struct {
		ID string `json:"id"`
	}
	err := c.get(cmd.Context(), "/v1/models/"+name, &entry)
	e, refused := errors.AsType[*apiError](err)
	if !refused || e.status != http.StatusNotFound || cfg.Client.Server != "" {
		return err
	}
	store, err := a.store(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	defer stop()
	_, err = a.ensure(ctx, cfg, store, name)
	return err
}

// ownServer is a server inside this process, for one chat.
type ownServer struct {
	client *client
	model  string
	stop   func()
}

// ownServer starts a server on a free loopback port with a key that only we know, and loads the model.
func (a *app) ownServer(ctx context.Context, cmd *cobra.Command, cfg *configs.Config, name string) (*ownServer, error) {
	store, err := a.store(cfg)
	if err != nil {
		return nil, err
	}
	e, err := a.ensure(ctx, cfg, store, name)
	if err != nil {
		return nil, err
	}
	key := rand.Text()
	cfg.Server.APIKeys, cfg.Default = []string{key}, e.Name
	if !cmd.Flags().Changed("log-level") {
		cfg.Log.Level = "error" // the terminal belongs to the chat
	}
	log := a.logger(cfg)
	listeners, err := listen(ctx, []string{"127.0.0.1:0"}, log)
	if err != nil {
		return nil, err
	}
	b, err := a.backend(cmd.Context(), cfg, store, log)
	if err != nil {
		listeners[0].Close()
		return nil, err
	}
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- b.server.Serve(sctx, listeners...) }()
	end := func() {
		stop()
		<-served
		b.service.pool.Close()
	}
	stopWatch := a.watchLoad(ctx, b.service, e.Name)
	_, release, err := b.service.Acquire(ctx, e.Name)
	stopWatch()
	if err != nil {
		end()
		return nil, fmt.Errorf("load %s: %w", e.Name, err)
	}
	release()
	b.service.pool.KeepAlive(e.Name, -1)
	c := clientFor(cfg)
	c.base, c.key = "http://"+net.JoinHostPort("127.0.0.1", port(listeners[0])), key
	return &ownServer{client: c, model: e.Name, stop: end}, nil
}

func port(l net.Listener) string {
	_, p, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "0" // a TCP listener's address always has a port
	}
	return p
}
