//! The CUDA driver library behind types that free what they hold: contexts, memory, kernels, events, graphs.
//!
//! In: addresses, PTX text, launches. Out: results, or errors that name the call's purpose and the driver's reason. The
//! library is opened at run time; [`Context::open`] is the only way in and says so if there is none. Everything is
//! ordered by the context's one stream, and every call makes the context current first, so any thread may call.

use crate::device::Error;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// The oldest driver interface that has every function used here, as CUDA numbers versions.
const DRIVER: i32 = 12030;

fn check(result: CUresult, what: impl FnOnce() -> String) -> Result<(), Error> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(Error::System { what: what(), why: reason(failed) }),
    }
}

fn reason(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut s = null();
        // SAFETY: the driver stores a pointer to a static string, or null for a code it does not know.
        unsafe {
            get(result, &mut s);
            if s.is_null() { String::new() } else { CStr::from_ptr(s).to_string_lossy().into_owned() }
        }
    };
    format!("{} ({})", text(sys::cuGetErrorString), text(sys::cuGetErrorName))
}

/// 12040 is version 12.4.
fn show(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn unsupported(why: String) -> Error {
    let instead = "install or update the NVIDIA driver, or use the CPU".into();
    Error::Unsupported { device: "CUDA".into(), why, instead }
}

/// A device's primary context and the stream that orders all work.
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: driver handles may be used from any thread once the context is current there, which `bind` sees to.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Context {}

impl Context {
    pub fn open(ordinal: usize) -> Result<Arc<Context>, Error> {
        // SAFETY: opening the library runs its initialisers, which every CUDA program relies on.
        if !unsafe { sys::is_culib_present() } {
            return Err(unsupported("no NVIDIA driver library (libcuda.so.1) found".into()));
        }
        let (mut version, mut count, mut device, mut raw, mut stream) = (0, 0, 0, null_mut(), null_mut());
        // SAFETY: each call writes one value of its type to a live local, in the order the driver asks for.
        unsafe {
            let init = sys::cuInit(0);
            if init != CUresult::CUDA_SUCCESS {
                return Err(unsupported(format!("the NVIDIA driver does not start: {}", reason(init))));
            }
            check(sys::cuDriverGetVersion(&mut version), || "asking for the driver's version".into())?;
            if version < DRIVER {
                let why =
                    format!("the NVIDIA driver knows CUDA {}, and {} is needed", show(version), show(DRIVER));
                return Err(unsupported(why));
            }
            check(sys::cuDeviceGetCount(&mut count), || "counting GPUs".into())?;
            if ordinal >= count as usize {
                return Err(unsupported(format!("there is no GPU {ordinal}, only {count}")));
            }
            check(sys::cuDeviceGet(&mut device, ordinal as i32), || format!("opening GPU {ordinal}"))?;
            check(sys::cuDevicePrimaryCtxRetain(&mut raw, device), || format!("using GPU {ordinal}"))?;
        }
        let mut context = Context { device, raw, stream };
        context.bind()?;
        // The context keeps a stack for every thread that the GPU can hold, 270 MB on an H200, and generated kernels call
        // nothing. A driver that refuses to do without keeps it.
        // SAFETY: the context is current.
        let _ = unsafe { sys::cuCtxSetLimit(sys::CUlimit_enum::CU_LIMIT_STACK_SIZE, 0) };
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and the stream goes to a live local.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) }, || "creating a stream".into())?;
        context.stream = stream;
        Ok(Arc::new(context))
    }

    /// Makes the context current on the calling thread.
    fn bind(&self) -> Result<(), Error> {
        // SAFETY: the context is retained for as long as `self` lives.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, || "entering the GPU's context".into())
    }

    pub fn device_name(&self) -> Result<String, Error> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes a terminated string of at most the length given.
        unsafe {
            let result = sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device);
            check(result, || "asking for the GPU's name".into())?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    fn attribute(&self, which: Attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: the driver writes one integer.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.device) };
        check(result, || format!("asking for {which:?}"))?;
        Ok(value)
    }
    /// Compute capability times ten.
    pub fn sm(&self) -> Result<u32, Error> {
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((10 * major + minor) as u32)
    }
    pub fn multiprocessors(&self) -> Result<u32, Error> {
        Ok(self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32)
    }
    pub fn l2_bytes(&self) -> Result<usize, Error> {
        Ok(self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize)
    }
    /// Free and total bytes.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two sizes.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, || "asking for the GPU's free memory".into())?;
        Ok((free, total))
    }

    /// Zeroed memory, aligned to 256 bytes.
    pub fn alloc(self: &Arc<Context>, bytes: usize) -> Result<Memory, Error> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: the driver writes one address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = self.memory().ok().map(|m| m.0);
            return Err(Error::OutOfMemory { device: self.device_name()?, asked: bytes, free });
        }
        check(result, || format!("allocating {bytes} bytes on the GPU"))?;
        let memory = Memory { context: self.clone(), address };
        // SAFETY: the range was just allocated.
        let result = unsafe { sys::cuMemsetD8Async(address, 0, bytes.max(1), self.stream) };
        check(result, || format!("clearing {bytes} bytes on the GPU"))?;
        Ok(memory)
    }

    /// Zeroed memory of the program that stays where it is, so that the GPU copies to it directly.
    pub fn pinned(self: &Arc<Context>, floats: usize) -> Result<Pinned, Error> {
        self.bind()?;
        let mut start = null_mut();
        let bytes = floats.max(1) * size_of::<f32>();
        // SAFETY: the driver writes one address.
        let result = unsafe { sys::cuMemAllocHost_v2(&mut start, bytes) };
        check(result, || format!("allocating {bytes} bytes that the GPU copies to"))?;
        let start = start.cast::<f32>();
        // SAFETY: the range was just allocated, aligned to pages.
        unsafe { start.write_bytes(0, floats.max(1)) };
        Ok(Pinned { context: self.clone(), start, floats })
    }

    /// Copies `bytes` to the GPU; they may be reused at once.
    ///
    /// # Safety
    /// The range at `address` belongs to a live allocation of this context.
    pub unsafe fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the caller vouches for the range; pageable memory is staged before the call returns.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        check(result, || format!("copying {} bytes to the GPU", bytes.len()))
    }

    /// Copies from the GPU once everything before is done.
    ///
    /// # Safety
    /// The range at `address` belongs to a live allocation of this context.
    pub unsafe fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the caller vouches for the range; `bytes` is borrowed until the stream is drained below.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), self.stream)
        };
        let copied = check(result, || format!("copying {} bytes from the GPU", bytes.len()));
        self.synchronize().and(copied)
    }

    pub fn synchronize(&self) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, || "waiting for the GPU".into())
    }
}

/// Numbers in the program's memory that the driver holds in place.
pub struct Pinned {
    context: Arc<Context>,
    start: *mut f32,
    floats: usize,
}

// SAFETY: nobody else has the address; the memory belongs to no thread.
unsafe impl Send for Pinned {}

impl Deref for Pinned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: so many floats were allocated and set, and only `self` has their address.
        unsafe { std::slice::from_raw_parts(self.start, self.floats) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.floats) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: copies to it are waited for before the borrow ends. Failure leaks it.
            unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: nothing holds the stream any more, and the context was retained once. Failure leaks it.
            unsafe {
                if !self.stream.is_null() {
                    sys::cuStreamDestroy_v2(self.stream);
                }
                sys::cuDevicePrimaryCtxRelease_v2(self.device);
            }
        }
    }
}

/// An allocation on the GPU.
pub struct Memory {
    context: Arc<Context>,
    address: u64,
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.address
    }
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What runs on the stream may still use it.
        if self.context.synchronize().is_ok() {
            // SAFETY: the address came from `cuMemAlloc` and is freed once.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// A loaded program.
pub struct Kernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    name: String,
    threads: u32,
    /// Bytes of dynamic shared memory.
    shared: u32,
    /// Whether its code waits for the kernel before it.
    waits: bool,
}

// SAFETY: as for `Context`.
unsafe impl Send for Kernel {}
// SAFETY: as for `Context`.
unsafe impl Sync for Kernel {}

/// Percent of the memory of a multiprocessor that is shared memory, the rest being its cache: the same for all kernels, so
/// that no partition has to change between two.
const SHARED_PART: i32 = 44;

impl Kernel {
    /// Assembles `ptx`, whose entry is `name`.
    pub fn load(
        context: &Arc<Context>,
        name: &str,
        ptx: String,
        threads: u32,
        shared: usize,
        waits: bool,
    ) -> Result<Kernel, Error> {
        use sys::CUjit_option::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        let refused = |why: String| Error::Code { program: name.into(), why };
        let text = CString::new(ptx).map_err(|e| refused(e.to_string()))?;
        let entry = CString::new(name).map_err(|e| refused(e.to_string()))?;
        context.bind()?;
        let mut log = vec![0u8; 8192];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the text is terminated, and the two options are a buffer and its size.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if result != CUresult::CUDA_SUCCESS {
            let log = CStr::from_bytes_until_nul(&log).map(|s| s.to_string_lossy()).unwrap_or_default();
            return Err(refused(format!("{}\n{}", reason(result), log.trim_end())));
        }
        let context = context.clone();
        let mut kernel =
            Kernel { context, module, function, name: name.into(), threads, shared: shared as u32, waits };
        // SAFETY: the module is loaded, the name terminated, and the function goes to a live local.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, entry.as_ptr()) };
        check(result, || format!("finding the entry {name}"))?;
        kernel.function = function;
        use sys::CUfunction_attribute as Attribute;
        let most = (shared > 0)
            .then_some((Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32));
        let part = (Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, SHARED_PART);
        for (attribute, value) in most.into_iter().chain([part]) {
            // SAFETY: the function belongs to the module that was just loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function, attribute, value) };
            check(result, || format!("giving {name} {value} of {attribute:?}"))?;
        }
        Ok(kernel)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.context.synchronize().is_ok() {
            // SAFETY: nothing runs the module's code any more, and it is unloaded once.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// A kernel with its grid and parameters.
pub struct Call<'a> {
    pub kernel: &'a Kernel,
    pub grid: u32,
    pub args: &'a [u64],
}

impl Call<'_> {
    /// Calls `with` while the parameters' addresses are valid.
    fn with_params<R>(&self, with: impl FnOnce(*const sys::CUDA_KERNEL_NODE_PARAMS) -> R) -> R {
        let mut args: Vec<*mut c_void> =
            self.args.iter().map(|a| (a as *const u64).cast_mut().cast()).collect();
        with(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.kernel.function,
            gridDimX: self.grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.kernel.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.kernel.shared,
            kernelParams: args.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        })
    }
}

/// From a kernel to the next: the next may start when all blocks of this one have said so, and waits by itself for what
/// it reads. Kernels that say nothing are waited for.
const OVERLAP: sys::CUgraphEdgeData = sys::CUgraphEdgeData {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: 0,
    type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};

/// A chain of kernels that one call starts.
pub struct Graph {
    context: Arc<Context>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    nodes: Vec<sys::CUgraphNode>,
}

// SAFETY: as for `Context`; a graph is changed only through `&mut`.
unsafe impl Send for Graph {}

impl Graph {
    /// Each call runs after the one before it; kernels that know how to wait are started while that one ends.
    ///
    /// # Safety
    /// Whenever the graph is launched, the kernels may do what they do with their `args`, which fit their parameters
    /// and stay allocated until they are done.
    pub unsafe fn new(context: &Arc<Context>, calls: &[Call]) -> Result<Graph, Error> {
        let mut g = Graph::empty(context)?;
        for call in calls {
            let before = g.nodes.last().copied();
            g.add_kernel(call, before.is_some() && call.kernel.waits)?;
        }
        g.instantiate()?;
        Ok(g)
    }

    /// As [`Graph::new`], with an event before the first call and after each. Calls with a grid of 0 are left out.
    ///
    /// # Safety
    /// As for [`Graph::new`].
    pub unsafe fn timed(context: &Arc<Context>, calls: &[Call]) -> Result<(Graph, Vec<Event>), Error> {
        let mut g = Graph::empty(context)?;
        let mut events = vec![g.add_event()?];
        for call in calls {
            if call.grid > 0 {
                g.add_kernel(call, false)?;
            }
            events.push(g.add_event()?);
        }
        g.instantiate()?;
        Ok((g, events))
    }

    fn empty(context: &Arc<Context>) -> Result<Graph, Error> {
        context.bind()?;
        let mut g = Graph { context: context.clone(), graph: null_mut(), exec: null_mut(), nodes: vec![] };
        // SAFETY: the driver writes one handle.
        check(unsafe { sys::cuGraphCreate(&mut g.graph, 0) }, || "creating a graph".into())?;
        Ok(g)
    }

    fn add_kernel(&mut self, call: &Call, overlaps: bool) -> Result<(), Error> {
        let mut node = null_mut();
        let (graph, (before, count)) = (self.graph, self.last());
        let what = || format!("adding {} to a graph", call.kernel.name);
        let waited = if overlaps { 0 } else { count };
        // SAFETY: `before` points to `count` nodes of this graph, and the parameters are copied.
        let result = call.with_params(|params| unsafe {
            sys::cuGraphAddKernelNode_v2(&mut node, graph, before, waited, params)
        });
        check(result, what)?;
        if overlaps {
            // SAFETY: as above; both are kernels, and the later one waits by itself.
            let result = unsafe { sys::cuGraphAddDependencies_v2(graph, before, &node, &OVERLAP, count) };
            check(result, what)?;
        }
        self.nodes.push(node);
        Ok(())
    }

    fn add_event(&mut self) -> Result<Event, Error> {
        let event = Event::new(&self.context)?;
        let mut node = null_mut();
        let (before, count) = self.last();
        // SAFETY: `before` points to `count` nodes of this graph, and the event is live.
        let result =
            unsafe { sys::cuGraphAddEventRecordNode(&mut node, self.graph, before, count, event.raw) };
        check(result, || "adding an event to a graph".into())?;
        self.nodes.push(node);
        Ok(event)
    }

    /// The node that the next one waits for.
    fn last(&self) -> (*const sys::CUgraphNode, usize) {
        self.nodes.last().map_or((null(), 0), |n| (n as *const _, 1))
    }

    /// Makes the graph ready and sends it to the GPU, so that its first launch is like every other.
    fn instantiate(&mut self) -> Result<(), Error> {
        let what = || format!("making a graph of {} nodes", self.nodes.len());
        // SAFETY: the graph is complete, and the driver writes one handle.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&mut self.exec, self.graph, 0) }, what)?;
        // SAFETY: the graph was just made, and the stream is the context's own.
        check(unsafe { sys::cuGraphUpload(self.exec, self.context.stream) }, what)
    }

    /// Gives the n-th kernel another grid from the next launch on; with 0 it does not run.
    pub fn set_grid(&mut self, n: usize, call: &Call) -> Result<(), Error> {
        self.context.bind()?;
        let node = self.nodes[n];
        let what = || format!("changing the grid of {} to {}", call.kernel.name, call.grid);
        if call.grid > 0 {
            // SAFETY: the node is of this graph, and the parameters are copied.
            let result = call.with_params(|params| unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node, params)
            });
            check(result, what)?;
        }
        // SAFETY: as above.
        check(unsafe { sys::cuGraphNodeSetEnabled(self.exec, node, (call.grid > 0) as u32) }, what)
    }

    pub fn launch(&self) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: whoever built the graph vouched for its kernels.
        let result = unsafe { sys::cuGraphLaunch(self.exec, self.context.stream) };
        check(result, || format!("starting a graph of {} nodes", self.nodes.len()))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.synchronize().is_ok() {
            // SAFETY: the graph is not running, and each handle is destroyed once, if it was made.
            unsafe {
                if !self.exec.is_null() {
                    sys::cuGraphExecDestroy(self.exec);
                }
                if !self.graph.is_null() {
                    sys::cuGraphDestroy(self.graph);
                }
            }
        }
    }
}

/// A point in a graph, with the time it was reached.
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

impl Event {
    fn new(context: &Arc<Context>) -> Result<Event, Error> {
        context.bind()?;
        let mut event = Event { context: context.clone(), raw: null_mut() };
        // SAFETY: the driver writes one handle.
        check(unsafe { sys::cuEventCreate(&mut event.raw, 0) }, || "creating an event".into())?;
        Ok(event)
    }

    /// Time since an earlier event; both must have been reached.
    pub fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        let mut ms = 0.0;
        // SAFETY: both events are live, and the driver writes one float.
        let result = unsafe { sys::cuEventElapsedTime(&mut ms, earlier.raw, self.raw) };
        check(result, || "reading the time of an event".into())?;
        Ok(Duration::from_secs_f64(ms as f64 / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.raw.is_null() && self.context.bind().is_ok() {
            // SAFETY: the handle is destroyed once; the driver waits for the stream to pass it.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
