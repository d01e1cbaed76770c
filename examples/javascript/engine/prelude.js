// What scripts find beside the language, and what the engine wants done in
// JavaScript. The value is the latter.
(() => {
	const { Canceled, Unknown } = codes;

	class StatusError extends Error {
		constructor(code, message, details = []) {
			super(message);
			this.name = 'StatusError';
			this.code = code;
			this.details = details;
		}
	}

	// Nobody else hears of it: the engine looks for rejections that are not handled.
	const report = error => { Promise.reject(error); };

	class AbortSignal {
		aborted = false;
		reason = undefined;
		#listeners = new Set();

		addEventListener(type, listener) { if (type === 'abort') this.#listeners.add(listener); }
		removeEventListener(type, listener) { if (type === 'abort') this.#listeners.delete(listener); }
		throwIfAborted() { if (this.aborted) throw this.reason; }

		static abort(signal, reason) {
			if (signal.aborted) return;
			signal.aborted = true;
			signal.reason = reason;
			for (const listener of signal.#listeners) {
				try { listener.call(signal, { type: 'abort', target: signal }); } catch (error) { report(error); }
			}
			signal.#listeners.clear();
		}
	}
	const { abort } = AbortSignal;
	delete AbortSignal.abort;

	class AbortController {
		signal = new AbortSignal();
		abort(reason = new StatusError(Canceled, 'aborted')) { abort(this.signal, reason); }
	}

	// The host's timers drop what is thrown.
	for (const name of ['setTimeout', 'setInterval', 'setImmediate']) {
		const set = globalThis[name];
		globalThis[name] = (callback, ...rest) => {
			if (typeof callback !== 'function') throw new TypeError(`${name} needs a function`);
			return set((...args) => { try { callback(...args); } catch (error) { report(error); } }, ...rest);
		};
	}

	Object.assign(globalThis, { StatusError, AbortController });

	const { parse, stringify } = JSON;
	const resolve = Promise.resolve.bind(Promise);
	return {
		parse,
		stringify,
		abort,
		signal() { return new AbortSignal(); },

		// watch has f called when signal, which is one or looks like one, is aborted.
		watch(signal, f) {
			if (signal.aborted) f();
			else signal.addEventListener('abort', f);
		},
		unwatch(signal, f) { signal.removeEventListener('abort', f); },

		// then has one of the functions called when value is settled.
		then(value, resolved, rejected) { resolve(value).then(resolved, rejected); },

		// statusError returns what to throw for a google.rpc.Status in JSON.
		statusError(text) {
			const { code, message, details } = parse(text);
			return new StatusError(code, message, details);
		},

		// describe returns what was thrown as a google.rpc.Status in JSON, and its stack.
		describe(thrown) {
			const is = Object(thrown) === thrown;
			const known = is && Number.isInteger(thrown.code) && thrown.code > 0 && thrown.code <= 16;
			const status = known
				? { code: thrown.code, message: String(thrown.message), details: thrown.details }
				: { code: Unknown, message: String(thrown) };
			return [stringify(status), is && typeof thrown.stack === 'string' ? thrown.stack : ''];
		},
	};
})()
