package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"hearth/backends"
	"hearth/backends/telemetry"
	"hearth/configs"
	"hearth/engine/supervisor"
	"hearth/models"
	"hearth/models/hub"
	"hearth/server"
)

func (a *app) serveCmd() *cobra.Command {
	c := &cobra.Command{
		Use:               "serve [MODEL]",
		ValidArgsFunction: a.completeModels(1),
		Short:             "serve models over HTTP",
		Long: `Serves every model of the store behind an OpenAI-compatible API. Models are loaded when a request names them.
MODEL is loaded at start, and stays; it may be anything that hearth pull takes, and is fetched when it is not here.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			name := cfg.Default
			if len(argv) > 0 {
				name = argv[0]
			}
			return a.serve(cmd, cfg, name)
		},
	}
	configs.AddFlags(c.Flags(), "listen", "pool.", "engine.", "run.")
	return c
}

// backend is what serve and run start: the worker pool and the HTTP server over it.
type backend struct {
	service *service
	server  *server.Server
	sensors *telemetry.Sampler // of the GPUs; whoever serves runs it
}

// serve runs until the context ends. name may be empty.
func (a *app) serve(cmd *cobra.Command, cfg *configs.Config, name string) error {
	log := a.logger(cfg)
	store, err := a.store(cfg)
	if err != nil {
		return err
	}
	if name != "" {
		e, err := a.ensure(cmd.Context(), cfg, store, name)
		if err != nil {
			return err
		}
		name = e.Name
		cfg.Default = e.Name
	}
	// Ports come before the slow part: a second server should fail at once.
	listeners, err := listen(cmd.Context(), cfg.Listen, log)
	if err != nil {
		return err
	}
	b, err := a.backend(cmd.Context(), cfg, store, log)
	if err != nil {
		for _, l := range listeners {
			l.Close()
		}
		return err
	}
	defer b.service.pool.Close()
	warnOpen(cfg, listeners, log)
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	go func() { a.announce(ctx, cancel, b, listeners, name, log) }()
	var watching sync.WaitGroup
	watching.Go(func() { b.sensors.Run(ctx) })
	err = b.server.Serve(ctx, listeners...)
	cancel(nil)
	watching.Wait()
	a.notify(daemon.SdNotifyStopping, log)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errInterrupted) {
		return errors.Join(cause, err)
	}
	return err
}

// announce loads the named model, then says where the server is and how to call it.
func (a *app) announce(ctx context.Context, cancel context.CancelCauseFunc, b *backend, listeners []net.Listener, name string, log *slog.Logger) {
	if name != "" {
		stop := a.watchLoad(ctx, b.service, name)
		_, release, err := b.service.Acquire(ctx, name)
		stop()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			cancel(fmt.Errorf("load %s: %w", name, err))
			return
		}
		release()
		b.service.pool.KeepAlive(name, -1)
	}
	url := "http://" + listeners[0].Addr().String()
	a.printf("hearth %s serves %s on %s\n", version(), orAll(name), url)
	if name == "" {
		if all, _ := b.service.List(ctx); len(all) > 0 {
			name = all[0].Name
		}
	}
	if name != "" {
		a.printf("try: %s\n", curl(url, name))
	}
	a.notify(daemon.SdNotifyReady, log)
}

func orAll(name string) string {
	if name == "" {
		return "the models of the store"
	}
	return name
}

// curl is a command line that works as it stands.
func curl(url, name string) string {
	model, err := json.Marshal(name)
	if err != nil {
		model = []byte(`""`) // a validated name always marshals
	}
	return fmt.Sprintf(`curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":%s,"stream":true,`+
		`"messages":[{"role":"user","content":"Why is the sky blue?"}]}'`, url, model)
}

// watchLoad prints how far a load is, every few seconds.
func (a *app) watchLoad(ctx context.Context, s *service, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(3 * time.Second)
		defer t.Stop()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			for _, st := range s.pool.Status() {
				now := fmt.Sprintf("loading %s: %.0f%% (%s)", name, 100*st.Progress, orWord(st.Stage, string(st.State)))
				if st.Name == name && now != last {
					a.notef("%s\n", now)
					last = now
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

func orWord(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// notify tells systemd about our state, when it runs us.
func (a *app) notify(state string, log *slog.Logger) {
	if a.env.NotifySocket() == "" {
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd was not notified", "err", err)
	}
}

// ensure finds the model, fetching it when the name says where from.
func (a *app) ensure(ctx context.Context, cfg *configs.Config, store *models.Store, name string) (models.Entry, error) {
	e, err := store.Resolve(name)
	if err == nil || !errors.Is(err, models.ErrNotFound) {
		return e, err
	}
	ref, perr := hub.Parse(name)
	if perr != nil {
		return e, err
	}
	h, herr := a.hub(cfg)
	if herr != nil {
		return e, herr
	}
	p, wait := a.progress()
	r, err := h.Pull(ctx, ref, store, hub.Options{}, p)
	wait()
	return r.Entry, err
}

// backend wires the pool and the server.
func (a *app) backend(ctx context.Context, cfg *configs.Config, store *models.Store, log *slog.Logger) (*backend, error) {
	b, err := a.bundle(cfg)
	if err != nil {
		return nil, err
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "bin", "hearth-engine")); err != nil {
		return nil, &hintedError{fmt.Errorf("engine bundle %s has no hearth-engine: %w", b.Name, err), "make build puts it there", exitNotFound}
	}
	if err := os.MkdirAll(cfg.Dirs.Runtime, 0o700); err != nil {
		return nil, fmt.Errorf("create runtime folder: %w", err)
	}
	chooser, err := a.chooser(ctx, cfg, b, log)
	if err != nil {
		return nil, err
	}
	root, err := a.deviceRoot(cfg)
	if err != nil {
		return nil, err
	}
	plan := newPlanner(root, backends.Environ(a.env), log)
	pool, err := supervisor.New(supervisor.Config{
		RuntimeDir: cfg.Dirs.Runtime, Env: a.env, MaxResident: cfg.Pool.MaxResident, KeepAlive: cfg.Pool.KeepAlive,
		AcquireTimeout: cfg.Pool.AcquireTimeout, Logger: log, Capacity: plan.Capacity,
	}, &resolver{store: store, cfg: cfg, bundle: b, chooser: chooser, planner: plan, log: log})
	if err != nil {
		return nil, err
	}
	plan.held = pool.Held
	sensors, err := a.sampler(ctx, root, log)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s := &service{store: store, pool: pool, passed: chooser.passedOver}
	srv, err := server.New(server.Config{
		APIKeys: cfg.Server.APIKeys, CORSOrigins: cfg.Server.Origins, AllowedHosts: cfg.Server.Hosts,
		MaxBodyBytes: int64(cfg.Server.MaxBody), DefaultModel: cfg.Default, ShutdownGrace: cfg.Server.ShutdownTimeout,
	}, server.Deps{Models: s, Logger: log, Version: version(), Doctor: a.doctorHandler(cfg), Collectors: []prometheus.Collector{sensors.Collector()}})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &backend{service: s, server: srv, sensors: sensors}, nil
}

// listen opens all addresses, or none. A machine without IPv6 loses the loopback address of that family only.
func listen(ctx context.Context, addrs []string, log *slog.Logger) ([]net.Listener, error) {
	var out []net.Listener
	var first error
	for _, addr := range addrs {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			out = append(out, l)
			continue
		}
		if len(addrs) > 1 && strings.HasPrefix(addr, "[::1]:") && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			log.Warn("this machine has no IPv6 loopback address", "listen", addr)
			continue
		}
		first = err
		break
	}
	if first == nil && len(out) > 0 {
		return out, nil
	}
	for _, l := range out {
		l.Close()
	}
	hint := "--listen HOST:PORT chooses another address"
	if errors.Is(first, syscall.EADDRINUSE) {
		hint = "another server has it, perhaps hearth itself: hearth ps; " + hint
	}
	return nil, &hintedError{fmt.Errorf("cannot listen: %w", first), hint, exitFailed}
}

// warnOpen tells when anybody on the network may use the server.
func warnOpen(cfg *configs.Config, listeners []net.Listener, log *slog.Logger) {
	if len(cfg.Server.APIKeys) > 0 {
		return
	}
	for _, l := range listeners {
		if t, ok := l.Addr().(*net.TCPAddr); ok && !t.IP.IsLoopback() {
			log.Warn("the server is open to the network without a key; set HEARTH_API_KEY", "listen", l.Addr().String())
		}
	}
}
