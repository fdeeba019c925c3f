// A Vulkan driver in disguise: a software renderer that calls itself an AMD card at a PCI address of the test's choice.
// It computes rightly, only slowly, so it stands for the Vulkan driver of a GPU that HIP cannot use.
//
// DRIVER is the path of the real driver, NAME the card's name, DOMAIN, BUS, SLOT and FN its address. Every call goes to the
// real driver, whose handles are handed on as they are; only what a device says of itself is changed. The structures are
// those of the Vulkan specification, as far as they are needed here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void (*function)(void);
typedef function (*get_proc)(void *instance, const char *name);

enum { VULKAN_12_PROPERTIES = 52, DRIVER_PROPERTIES = 1000196000, PCI_BUS_INFO = 1000212000 }; // VkStructureType
enum { DISCRETE_GPU = 2, SUCCESS = 0, INCOMPLETE = 5 };

struct properties { // the head of VkPhysicalDeviceProperties
	uint32_t api_version, driver_version, vendor_id, device_id, device_type;
	char device_name[256];
};

struct properties2 {
	uint32_t type;
	void *next;
	struct properties properties;
};

struct driver { // VkPhysicalDeviceDriverProperties and the head of VkPhysicalDeviceVulkan12Properties
	uint32_t type;
	void *next;
	uint32_t id;
	char name[256], info[256];
};

struct pci_bus_info {
	uint32_t type;
	void *next;
	uint32_t domain, bus, device, function;
};

struct extension {
	char name[256];
	uint32_t version;
};

static const char pci_extension[] = "VK_EXT_pci_bus_info";

static void *real(const char *name) {
	static void *library;
	if (!library && !(library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL))) {
		fprintf(stderr, "fakegpu: %s\n", dlerror());
		return NULL;
	}
	return dlsym(library, name);
}

static get_proc of_instance(void) { return (get_proc)real("vk_icdGetInstanceProcAddr"); }

// The functions below are asked for with an instance, and needed without one: the last one is kept. One process has one.
static void *instance;

static void disguise(struct properties *p) {
	p->device_type = DISCRETE_GPU;
	snprintf(p->device_name, sizeof p->device_name, "%s", NAME);
}

static void get_properties(void *device, struct properties *p) {
	((void (*)(void *, struct properties *))of_instance()(instance, "vkGetPhysicalDeviceProperties"))(device, p);
	disguise(p);
}

static void get_properties2(void *device, struct properties2 *p) {
	((void (*)(void *, struct properties2 *))of_instance()(instance, "vkGetPhysicalDeviceProperties2"))(device, p);
	disguise(&p->properties);
	for (struct driver *d = p->next; d; d = d->next) {
		if (d->type == DRIVER_PROPERTIES || d->type == VULKAN_12_PROPERTIES) {
			snprintf(d->name, sizeof d->name, "radv");
		} else if (d->type == PCI_BUS_INFO) {
			struct pci_bus_info *b = (struct pci_bus_info *)d;
			b->domain = DOMAIN, b->bus = BUS, b->device = SLOT, b->function = FN;
		}
	}
}

static int32_t list_extensions(void *device, const char *layer, uint32_t *count, struct extension *list) {
	uint32_t room = *count;
	int32_t r = ((int32_t (*)(void *, const char *, uint32_t *, struct extension *))of_instance()(
		instance, "vkEnumerateDeviceExtensionProperties"))(device, layer, count, list);
	if (layer || (r != SUCCESS && r != INCOMPLETE)) {
		return r;
	}
	if (!list) {
		++*count;
		return r;
	}
	if (r == INCOMPLETE || *count == room) {
		return INCOMPLETE;
	}
	memset(&list[*count], 0, sizeof *list);
	memcpy(list[*count].name, pci_extension, sizeof pci_extension);
	list[(*count)++].version = 2;
	return SUCCESS;
}

static function ours(const char *name) {
	if (!strcmp(name, "vkGetPhysicalDeviceProperties")) return (function)get_properties;
	if (!strcmp(name, "vkGetPhysicalDeviceProperties2") || !strcmp(name, "vkGetPhysicalDeviceProperties2KHR")) return (function)get_properties2;
	if (!strcmp(name, "vkEnumerateDeviceExtensionProperties")) return (function)list_extensions;
	return NULL;
}

function vk_icdGetInstanceProcAddr(void *i, const char *name) {
	if (i) instance = i;
	function f = ours(name);
	return f ? f : of_instance()(i, name);
}

function vk_icdGetPhysicalDeviceProcAddr(void *i, const char *name) {
	if (i) instance = i;
	function f = ours(name);
	return f ? f : ((get_proc)real("vk_icdGetPhysicalDeviceProcAddr"))(i, name);
}

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
	return ((int32_t (*)(uint32_t *))real("vk_icdNegotiateLoaderICDInterfaceVersion"))(version);
}
