// Runs nsqjs's Writer and Reader, used as nsqjs's documentation describes.
const fs = require('fs')
const { Reader, Writer } = require('nsqjs')
const { job, say, fail, received, hold, soon } = require('./job.js')

const [host, port] = job.nsqd.split(':')
const options = {
  heartbeatInterval: job.heartbeat_ms / 1000,
  messageTimeout: job.msg_timeout_ms,
  tls: job.tls !== null,
  deflate: job.compression === 'deflate',
  snappy: job.compression === 'snappy',
  authSecret: job.secret
}
if (job.tls) options.ca = fs.readFileSync(job.tls)

function connected (onError) {
  return new Promise((resolve) => {
    const writer = new Writer(host, Number(port), options)
    writer.on('error', onError)
    writer.on('ready', () => resolve(writer))
    writer.connect()
  })
}

function published (send) {
  return new Promise((resolve) => send((error) => {
    if (error) fail(error)
    resolve()
  }))
}

async function publish (writer) {
  say('publishing')
  for (const body of job.publish) {
    await published((done) => writer.publish(job.topic, body, done))
  }
  for (const body of job.defer) {
    await published((done) => writer.deferPublish(job.topic, [body], job.defer_ms, done))
  }
  if (job.multi_publish.length > 0) {
    await published((done) => writer.publish(job.topic, job.multi_publish, done))
  }
  say('published')
}

// A writer does not reconnect after an error: its user must create another one.
async function insist () {
  for (;;) {
    const writer = await connected(() => {})
    const error = await new Promise((resolve) => writer.publish(job.topic, job.insist, resolve))
    if (!error) return say('accepted')
    say('refused', { text: String(error), connected: writer.ready })
    await soon()
  }
}

function consume () {
  const where = job.lookupd
    ? { lookupdHTTPAddresses: job.lookupd, lookupdPollInterval: 1 }
    : { nsqdTCPAddresses: job.nsqd }
  const reader = new Reader(job.topic, job.channel, {
    maxInFlight: job.max_in_flight, maxBackoffDuration: 16, ...where, ...options
  })
  reader.on('error', fail)
  reader.on('message', (message) => {
    const plan = received(message.body, message.attempts)
    if (plan === 'finish') message.finish()
    else if (plan === 'touch') hold(message)
    else if (plan !== 'timeout') message.requeue(job.requeue_ms, plan === 'backoff')
  })
  reader.connect()
}

connected(fail).then(publish).then(async () => {
  if (job.insist) await insist()
  if (job.consume) consume()
})
